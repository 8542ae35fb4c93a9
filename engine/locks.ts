import type Redis from 'ioredis';
import type { Cluster } from 'ioredis';
import { CLAIM_MS, type Caller } from './calls';
import type { Source } from './connection';
import { LockOptionError, RedisLockError } from './errors';
import { executionKey, isInternal, newLockId } from './keys';
import { Lock, type LockHost } from './lock';
import { lockState } from './state';
import { Transitions } from './transitions';
import type { AcquireOptions, Busy, LocksOptions, Lost, NotStolen, Owner, Status, StealOptions, TimedOut } from './types';
import { using, type UsingOptions, type UsingResult } from './using';
import * as check from './validate';
import { Waiting, type Entry } from './waiting';

const DAY = 86_400_000;

/**
 * Distributed locks in one Redis. One instance per process and Redis is enough: it has one command connection, and one
 * subscriber as soon as somebody waits.
 */
export class Locks {
  private readonly transitions: Transitions;
  private readonly waiters: Waiting;
  private readonly host: LockHost = {
    heartbeat: (lock, ttlMs, renewEveryMs) =>
      this.transitions.heartbeat(lock.keys, lock.lockId, {
        token: lock.fencingToken,
        hold: check.hold(lock.hold),
        index: lock.index,
        ...(ttlMs !== undefined && { ttlMs: check.ttl(ttlMs) }),
        ...(renewEveryMs !== undefined && { renewEveryMs: check.duration('renewEveryMs', renewEveryMs, 0) }),
      }),
    release: (lock) =>
      this.transitions.release(lock.keys, lock.lockId, lock.fencingToken, check.hold(lock.hold), lock.index),
  };

  /** @throws LockOptionError */
  constructor(source: Source, options: LocksOptions = {}) {
    this.transitions = new Transitions(source, {
      commandTimeoutMs: check.duration('commandTimeoutMs', options.commandTimeoutMs ?? 5000, 1),
      fencingRetentionMs: check.duration('fencingRetentionMs', options.fencingRetentionMs ?? 7 * DAY, 1, 365 * DAY),
      maxWaiters: check.duration('maxWaiters', options.maxWaiters ?? 10_000, 1),
    });
    this.waiters = new Waiting(this.transitions);
  }

  /** host:port of the Redis, for messages. */
  get server(): string {
    return this.transitions.calls.connection.server;
  }

  /** Callers that wait in line in this process. */
  get waiting(): number {
    return this.waiters.size;
  }

  /**
   * Takes the lock, at once or after waiting in line.
   * @throws LockOptionError for options that can't be used
   * @throws RedisLockError when Redis can't be asked; then the lock is not held
   * @throws the reason of `signal` when that ends the wait; then the line is left
   */
  async acquire(key: string, options: AcquireOptions): Promise<{ outcome: 'acquired'; lock: Lock } | Busy | TimedOut> {
    const caller = this.caller(key, options);
    const stealAfterMs = options.stealIfStaleMs === undefined ? -1 : check.duration('stealIfStaleMs', options.stealIfStaleMs, 1);
    options.signal?.throwIfAborted();
    if (options.waitMs === undefined && options.keepPlaceMs !== undefined) {
      throw new LockOptionError('keepPlaceMs', 'keeps a place in line, so it needs waitMs too (0 = join the line and go)');
    }
    const result: Entry | Busy | TimedOut =
      options.waitMs === undefined
        ? await this.waiters.tryOnce(caller, stealAfterMs)
        : await this.waiters.wait(caller, {
            waitMs: check.duration('waitMs', options.waitMs, 0),
            keepPlaceMs: check.duration('keepPlaceMs', options.keepPlaceMs ?? 0, 0),
            stealAfterMs,
            confirm: options.confirm === true,
            signal: options.signal,
          });
    if (result.outcome !== 'acquired') return result;
    return { outcome: 'acquired', lock: this.lock(caller, options.hold, result) };
  }

  /**
   * Takes the lock over from an abandoned holder, past the line. One script: exactly one of several contenders wins.
   * A lock that is free is not stolen (`reason: 'free'`): acquire it.
   * @throws LockOptionError · RedisLockError
   */
  async steal(key: string, options: StealOptions): Promise<{ outcome: 'stolen'; lock: Lock } | NotStolen> {
    const caller = this.caller(key, options);
    const [condition, value] = stealCondition(options);
    const asked = performance.now();
    const result = await this.transitions.steal(caller, condition, value);
    if (result.outcome !== 'stolen') return result;
    return { outcome: 'stolen', lock: this.lock(caller, options.hold, { grant: result.grant, asked }) };
  }

  /**
   * Goes on with a lease in a newer attempt of the one that took it: the same lock id with a new fencing token, so that
   * the older attempt, should it still run, is told that it lost (`takenOver`).
   * @param from what was kept of the lease; `owner` is whose it was
   * @throws LockOptionError · RedisLockError
   */
  async inherit(
    key: string,
    from: { lockId: string; fencingToken?: number; owner?: Owner },
    options: { ttlMs: number; owner?: Owner; hold?: string; renewEveryMs?: number },
  ): Promise<{ outcome: 'inherited'; lock: Lock } | Lost> {
    const caller = this.caller(key, { ...options, lockId: from.lockId });
    const asked = performance.now();
    const result = await this.transitions.inherit(caller, from.fencingToken ?? 0, executionKey(from.owner ?? {}));
    if (result.outcome === 'lost') return result;
    return { outcome: 'inherited', lock: this.lock(caller, options.hold, { grant: result.grant, asked }) };
  }

  /** What is there, changing nothing. @throws LockOptionError · RedisLockError */
  async status(key: string): Promise<Status> {
    const { holders, queue, fencingToken } = await this.transitions.status(this.transitions.keys(key));
    return { key, state: lockState(holders), holders, queue, fencingToken };
  }

  /**
   * The locks of a pattern (as SCAN has it) that are held, each once, in the order in which Redis names them.
   * @throws RedisLockError
   */
  async *list(options: { match: string }): AsyncGenerator<Status> {
    const seen = new Set<string>();
    for await (const names of this.scan(options.match)) {
      // SCAN may name a key twice.
      const keys = names.filter((name) => !isInternal(name) && !seen.has(name));
      names.forEach((name) => seen.add(name));
      const states = keys.map((name) => this.status(name.slice(this.transitions.prefix.length)).catch(skipWhatIsNoLock));
      for (const state of await Promise.all(states)) {
        if (state && state.state !== 'free') yield state;
      }
    }
  }

  /** The keys of a pattern, by their full names; on a cluster each master knows its own. */
  private async *scan(match: string): AsyncGenerator<string[]> {
    const { prefix } = this.transitions;
    const { connection } = this.transitions.calls;
    const nodes = await connection.run({
      call: async (client) => (client.isCluster ? (client as Cluster).nodes('master') : [client as Redis]),
    });
    for (const node of nodes) {
      let cursor = '0';
      do {
        const from = cursor;
        const scanned = await connection.run({
          call: (client) => (client.isCluster ? node : (client as Redis)).scan(from, 'MATCH', prefix + match, 'COUNT', 250),
        });
        yield scanned[1];
        cursor = scanned[0];
      } while (cursor !== '0');
    }
  }

  /** The entries of an execution's index. Some may have ended since: each has to be asked. @throws RedisLockError */
  async heldBy(execution: { instanceId: string; executionId: string }): Promise<Array<{ key: string; lockId: string }>> {
    const index = executionKey(execution);
    if (!index) return [];
    const entries = await this.transitions.calls.connection.run({ call: (client) => client.hgetall(index) });
    return Object.entries(entries).map(([lockId, full]) => ({ lockId, key: this.transitions.keysOfFull(full).key }));
  }

  /**
   * Frees everything that an execution holds or waits for, as far as it is still its own, and whose it was is told so
   * (`freed`) should it come back. Safe to repeat.
   * @throws RedisLockError
   */
  async releaseExecution(execution: { instanceId: string; executionId: string }): Promise<Array<{ key: string; outcome: string }>> {
    const entries = await this.heldBy(execution);
    const results = await Promise.allSettled(
      entries.map(async ({ key, lockId }) => {
        const { outcome } = await this.transitions.release(this.transitions.keys(key), lockId, 0, '-', executionKey(execution), 'freed');
        // It may still be waiting for this one.
        if (outcome !== 'released') {
          const leaver = { lockId, index: executionKey(execution), keepMs: 0 };
          await this.transitions.leave(this.transitions.keys(key), [leaver], 'back');
        }
        return { key, outcome };
      }),
    );
    // One that fails must not keep the others held; it is reported when all have been tried.
    const failed = results.find((result) => result.status === 'rejected');
    if (failed) throw failed.reason;
    return results.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []));
  }

  /**
   * A handle for a lease that was acquired elsewhere, from what was kept of it. Whether it still holds, Redis says at the
   * next heartbeat or release.
   * @throws LockOptionError
   */
  resume(key: string, from: { lockId: string; fencingToken?: number; ttlMs?: number; hold?: string; owner?: Owner }): Lock {
    check.hold(from.hold);
    const { fencingToken = 0, ttlMs = 0, hold, owner = {} } = from;
    const grant = { fencingToken, ttlMs, expiresAt: 0, queue: 0, again: true, waitedMs: 0 };
    return new Lock(this.host, this.transitions.keys(key), check.lockId(from.lockId), hold, executionKey(owner), 0, grant);
  }

  /**
   * Acquires, runs `work`, renews every third of the TTL meanwhile, and releases in every case.
   * The signal of `work` is aborted when the lock is lost.
   */
  using<T>(key: string, options: UsingOptions, work: (lock: Lock, signal: AbortSignal) => Promise<T>): Promise<UsingResult<T>> {
    return using(options.ttlMs, (renewEveryMs) => this.acquire(key, { ...options, renewEveryMs }), work);
  }

  /** Ends the waits of this process (each rejects) and closes the connections, but not a client that was handed in. */
  async close(): Promise<void> {
    await this.waiters.close(new RedisLockError('closed', 'These locks were closed.', 'Create them anew.'));
    await this.transitions.calls.connection.close();
  }

  private caller(key: string, options: Pick<AcquireOptions, 'ttlMs' | 'limit' | 'owner' | 'hold' | 'renewEveryMs' | 'lockId'>): Caller {
    const keys = this.transitions.keys(key);
    const ask = check.ask(options);
    const lockId = options.lockId === undefined ? newLockId() : check.lockId(options.lockId);
    return Object.assign(ask, { keys, lockId, index: executionKey(ask.owner) });
  }

  private lock({ keys, lockId, index }: Caller, hold: string | undefined, { grant, asked, claim, claimAsked }: Omit<Entry, 'outcome'>): Lock {
    const validUntil = asked + (claim ? Math.min(CLAIM_MS, grant.ttlMs) : grant.ttlMs);
    return new Lock(this.host, keys, lockId, hold, index, validUntil, grant, claim, claimAsked);
  }
}

/** The condition as the script has it: its name, and a value. */
function stealCondition({ if: condition, staleMs }: StealOptions): [string, number] {
  if (typeof condition === 'object' && condition !== null) {
    const { fencingToken } = condition;
    if (!Number.isSafeInteger(fencingToken) || fencingToken < 1) {
      throw new LockOptionError('fencingToken', `must be the whole number of the holder that was seen, not ${String(fencingToken)}`);
    }
    return ['fencingToken', fencingToken];
  }
  if (condition === 'stale') return ['stale', staleMs === undefined ? -1 : check.duration('staleMs', staleMs, 1)];
  if (condition === 'noTtl' || condition === 'any') return [condition, 0];
  throw new LockOptionError('if', `must be 'stale', 'noTtl', 'any' or { fencingToken }, not ${JSON.stringify(condition)}`);
}

/** A key of another type, or one that can't be a lock's name. */
function skipWhatIsNoLock(error: unknown): undefined | Promise<never> {
  const isNoLock = error instanceof LockOptionError || (error instanceof RedisLockError && error.code === 'wrongType');
  return isNoLock ? undefined : Promise.reject(error);
}

/** Locks in the Redis of `source`. @throws LockOptionError */
export function createLocks(source: Source, options?: LocksOptions): Locks {
  return new Locks(source, options);
}

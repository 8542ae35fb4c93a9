import type Redis from 'ioredis';
import type { Cluster } from 'ioredis';
import { CLAIM_MS, type Caller } from './calls';
import type { Source } from './connection';
import { LockOptionError, RedisLockError } from './errors';
import { executionKey, isInternal, newLockId } from './keys';
import { Lock, type Acquired, type LockHost } from './lock';
import { takeAll, type Several } from './several';
import { lockState } from './state';
import { Transitions } from './transitions';
import type { AcquireAllOptions, AcquireOptions, Busy, DoneBefore, Grant, LocksOptions, Lost, NotStolen, OfKey, Owner, Status, StealOptions, TimedOut } from './types';
import { using, type UsingOptions, type UsingResult } from './using';
import * as check from './validate';
import { Waiting, type Entry } from './waiting';

const DAY = 86_400_000;
/** Locks that are taken in one step. */
const MOST_KEYS = 100;

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
    release: async (lock, done) =>
      await this.transitions.release(lock.keys, lock.lockId, lock.fencingToken, check.hold(lock.hold), lock.index, '', done && check.doneArguments(done)),
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
  acquire(key: string, options: AcquireOptions): Promise<Acquired | Busy | TimedOut> {
    return this.enter(key, options, false) as Promise<Acquired | Busy | TimedOut>;
  }

  /**
   * The same, unless what the key stands for was done already: then `doneBefore`, also for one who waits as it is done. It is
   * done when a lock of this key was released with `doneForMs`, and is not any more when that time is over.
   * @throws LockOptionError · RedisLockError · the reason of `signal`
   */
  acquireOnce(key: string, options: AcquireOptions): Promise<Acquired | Busy | TimedOut | DoneBefore> {
    return this.enter(key, options, true);
  }

  private async enter(key: string, options: AcquireOptions, once: boolean): Promise<Acquired | Busy | TimedOut | DoneBefore> {
    const caller = this.caller(key, options);
    const policy = check.policy(options, once);
    if (policy.length > 0) caller.policy = policy;
    const stealAfterMs = options.stealIfStaleMs === undefined ? -1 : check.duration('stealIfStaleMs', options.stealIfStaleMs, 1);
    options.signal?.throwIfAborted();
    if (options.waitMs === undefined && options.keepPlaceMs !== undefined) {
      throw new LockOptionError('keepPlaceMs', 'keeps a place in line, so it needs waitMs too (0 = join the line and go)');
    }
    const result: Entry | Busy | TimedOut | DoneBefore =
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
   * Takes the exclusive locks of several keys, all or none, in whatever order they are named: each counts once, at most 100. At
   * once it is one step, so that none of them is taken even for a moment where all can't be had. Waiting, they are taken in the
   * order of their bytes, and those that it has already are kept alive, and are busy for others, until it has all, or its
   * time is over. On a cluster, where keys lie apart, "none" is brought about by giving back.
   * @throws LockOptionError · RedisLockError · the reason of `signal`; then nothing is held
   */
  async acquireAll(keys: string[], options: AcquireAllOptions): Promise<Several> {
    const callers = this.callers(keys, options);
    const waitMs = options.waitMs === undefined ? undefined : check.duration('waitMs', options.waitMs, 0);
    options.signal?.throwIfAborted();
    const atOnce = async (): Promise<{ outcome: 'acquired'; locks: Lock[] } | (Busy & OfKey)> => {
      const answer = this.transitions.calls.apart ? await this.oneByOne(callers) : await this.transitions.acquireAll(callers);
      if (answer.outcome === 'busy') return answer;
      const { asked, grants } = answer;
      const locks = callers.map((caller, i) => this.lock(caller, options.hold, { grant: grants[i] as Grant, asked }));
      return { outcome: 'acquired', locks };
    };
    const one = async (i: number, deadline: number, signal: AbortSignal): Promise<Acquired | Busy | TimedOut> => {
      signal.throwIfAborted();
      const caller = callers[i] as Caller;
      const left = Math.max(0, Math.round(deadline - performance.now()));
      const result = await this.waiters.wait(caller, { waitMs: left, keepPlaceMs: 0, stealAfterMs: -1, confirm: true, signal });
      return result.outcome === 'acquired' ? { outcome: 'acquired', lock: this.lock(caller, options.hold, result) } : (result as Busy | TimedOut);
    };
    return await takeAll({ keys: callers.map((caller) => caller.keys.key), atOnce, one }, waitMs, callers[0]?.ttlMs ?? 0, options.signal);
  }

  /** All or none where no script can reach all: what was taken before the one that can't be had is given back. */
  private async oneByOne(callers: Caller[]): Promise<{ outcome: 'acquired'; asked: number; grants: Grant[] } | (Busy & OfKey)> {
    const asked = performance.now();
    const grants: Grant[] = [];
    const undo = async () =>
      await Promise.all(callers.slice(0, grants.length).map(({ keys, lockId, index }) => this.transitions.release(keys, lockId, 0, '-', index)));
    for (const caller of callers) {
      const answer = await this.waiters.tryOnce(caller, -1).catch(async (error: unknown) => {
        await undo().catch(() => {});
        return Promise.reject(error);
      });
      if (answer.outcome !== 'acquired') {
        await undo();
        return { ...(answer as Busy), key: caller.keys.key };
      }
      grants.push(answer.grant);
    }
    return { outcome: 'acquired', asked, grants };
  }

  /**
   * Takes the locks of several keys over, all or none, as one step: each has to be in the state that is asked for, or free.
   * @throws LockOptionError · RedisLockError
   */
  async stealAll(keys: string[], options: StealOptions): Promise<{ outcome: 'stolen'; locks: Lock[] } | (NotStolen & OfKey)> {
    const callers = this.callers(keys, options);
    const [condition, value] = stealCondition(options);
    if (condition === 'fencingToken') throw new LockOptionError('if', 'can be a fencing token for one key only; several have one each');
    if (this.transitions.calls.apart) throw new LockOptionError('key', 'must be a single one here: on a cluster the locks of several keys can not be taken over in one step');
    const answer = await this.transitions.stealAll(callers, condition, value);
    if (answer.outcome !== 'stolen') return answer;
    const { asked, grants } = answer;
    return { outcome: 'stolen', locks: callers.map((caller, i) => this.lock(caller, options.hold, { grant: grants[i] as Grant, asked })) };
  }

  /** One for each key, in the order of their bytes. Each has a lock id of its own, made from that of the whole. */
  private callers(keys: string[], options: Pick<AcquireOptions, 'ttlMs' | 'owner' | 'hold' | 'renewEveryMs' | 'lockId'>): Caller[] {
    if (!Array.isArray(keys) || keys.length === 0) throw new LockOptionError('key', 'must be a list with one name at least');
    const names = [...new Set(keys)].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
    if (names.length > MOST_KEYS) throw new LockOptionError('key', `must not be a list of more than ${MOST_KEYS} names, but has ${names.length}`);
    const base = options.lockId ?? newLockId();
    return names.map((name, i) => this.caller(name, { ...options, lockId: `${base}.${i}` }));
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
    const status = await this.transitions.status(this.transitions.keys(key));
    return { key, state: lockState(status.holders, status.done !== undefined), ...status };
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
        if (state && state.state !== 'free' && state.state !== 'doneMark') yield state;
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

  private caller(key: string, options: Pick<AcquireOptions, 'ttlMs' | 'limit' | 'mode' | 'owner' | 'hold' | 'renewEveryMs' | 'lockId'>): Caller {
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

import type Redis from 'ioredis';
import { RedisClock } from './clock';
import { Connection, clientFrom, type Client, type Source } from './connection';
import { RedisLockError, missingCommand, wrongType } from './errors';
import { lockKeys, type LockKeys } from './keys';
import { grant, holder, loss, report, type Report } from './replies';
import { Scripts, type Reply, type ScriptName } from './scripts';
import type { Alive, AlreadyReleased, Busy, BusyReason, ForeignHolder, Grant, Holder, Lost, NotHeld, NotStolen, NotStolenReason, Released } from './types';
import type { Ask } from './validate';

/** A waiter has so long to claim what was handed to it. */
export const CLAIM_MS = 3000;
/** How long an acquire that was given up is refused, should it still arrive. */
const MARK_MS = 60_000;
/** `any` leaves a grant alone for so long: of eight contenders one robs the holder, not each the one before. */
const YOUNGEST_MS = 5000;
const PROBE_MS = 1000;

/** Who asks, for what. */
export interface Caller extends Ask {
  keys: LockKeys;
  lockId: string;
  /** The index of its execution. */
  index: string | undefined;
}

/** Where and as whom a process waits; `waitMs` -1 does not join the line. */
export interface Wait {
  waitMs: number;
  channel: string;
  /** µs of the first arrival, 0 at first. */
  arrived: number;
}

/**
 * What becomes of a lock that was granted to one who leaves: kept, given back, or given back only if nobody has claimed
 * it yet.
 */
export type OnLeave = 'take' | 'back' | 'unclaimed';

/** An acquire, to tell what it did from what another one did: Redis' time, at least, of its start, and the latest at which it may grant. */
interface Call {
  since: number;
  latest: number;
}

/** Redis' clock is known this well, drift since the last answer included. */
const CLOCK_SLACK_MS = 50;

/** Granted, and `performance.now()` of the moment before it was asked for: the lease counts from there. */
export interface Won {
  outcome: 'acquired';
  grant: Grant;
  asked: number;
}

export type AcquireReply = Won | { outcome: 'waiting'; ticket: number; nextMs: number } | Busy;

/** One whose wait ends. */
export interface Leaver {
  lockId: string;
  index: string | undefined;
  /** Its place in line is kept so long for its return; 0 = not. */
  keepMs: number;
}

/** A call of a script that may grant. */
interface Granting<T> {
  name: 'acquire' | 'steal';
  caller: Caller;
  /** Ms that a place in line may last. */
  waitMs: number;
  /** Whether an answer that fails to come leaves things as they are. */
  stays: boolean;
  args: (latest: number) => Array<string | number>;
  read: (reply: Reply, asked: number) => T;
}

export interface TransitionOptions {
  commandTimeoutMs: number;
  fencingRetentionMs: number;
  maxWaiters: number;
}

/** Each transition of a lock as one call of its script, with typed answers. */
export class Transitions {
  readonly connection: Connection;
  readonly makeSubscriber: () => Client;
  private readonly clock = new RedisClock();
  private newest: LockKeys | undefined;
  private readonly scripts: Scripts;
  private probing: Promise<void> | undefined;

  constructor(
    source: Source,
    options: TransitionOptions,
  ) {
    const { client, make, makeSubscriber } = clientFrom(source, options.commandTimeoutMs);
    this.connection = new Connection(client, make, options.commandTimeoutMs, () => {
      this.clock.forget();
      this.scripts.forget();
    });
    this.makeSubscriber = makeSubscriber;
    this.scripts = new Scripts({
      retentionMs: options.fencingRetentionMs,
      claimMs: CLAIM_MS,
      publishCounts: !client.isCluster,
      maxWaiters: options.maxWaiters,
    });
  }

  /** The key prefix that the client adds by itself. */
  get prefix(): string {
    return (this.connection.client as Redis).options.keyPrefix ?? '';
  }

  keys(key: string): LockKeys {
    // A thousand who wait for one key share its names.
    if (this.newest?.key !== key) this.newest = lockKeys(key, this.prefix);
    return this.newest;
  }

  /** A lock by the name that messages and the index have for it. */
  keysOfFull(full: string): LockKeys {
    return this.keys(full.slice(this.prefix.length));
  }

  /** Ms since a moment of Redis' clock, at most. */
  since(redisMs: number): number {
    return this.clock.since(redisMs);
  }

  /** A lower bound of Redis' clock; 0 while it is unknown. */
  now(): number {
    return this.clock.in(-CLOCK_SLACK_MS);
  }

  acquire(caller: Caller, wait: Wait, stealAfterMs: number): Promise<AcquireReply> {
    const { lockId, ttlMs, terms, whose } = caller;
    const { waitMs, channel, arrived } = wait;
    const plain = waitMs < 0 && stealAfterMs < 0;
    return this.granting({
      name: 'acquire',
      caller,
      waitMs: Math.max(0, waitMs),
      // One who is in line already stays there when an answer fails to come, and will learn of a grant later.
      stays: arrived > 0,
      args: (latest) =>
        plain ? [lockId, ttlMs, latest, terms, whose] : [lockId, ttlMs, latest, terms, whose, waitMs, channel, arrived, stealAfterMs],
      read: (reply, asked): AcquireReply => {
        if (reply[0] === 'acquired') return { outcome: 'acquired', asked, grant: grant(reply, ttlMs) };
        if (reply[0] === 'waiting') return { outcome: 'waiting', ticket: Number(reply[2]), nextMs: Number(reply[3]) };
        const { reason, holders, queue } = report(reply);
        return { outcome: 'busy', reason: reason as BusyReason, holders, queue };
      },
    });
  }

  steal(caller: Caller, condition: string, value: number): Promise<{ outcome: 'stolen'; grant: Grant } | NotStolen> {
    const { lockId, ttlMs, terms, whose } = caller;
    return this.granting({
      name: 'steal',
      caller,
      waitMs: 0,
      stays: false,
      args: (latest) => [lockId, ttlMs, latest, terms, whose, condition, value, YOUNGEST_MS],
      read: (reply): { outcome: 'stolen'; grant: Grant } | NotStolen => {
        if (reply[0] === 'stolen') return { outcome: 'stolen', grant: grant(reply, ttlMs) };
        const { reason, holders, queue } = report(reply);
        return { outcome: 'notStolen', reason: reason as NotStolenReason, holders, queue };
      },
    });
  }

  /** @param token 0 = unknown @param ttlMs 0 = as before @param hold '-' = adds none */
  heartbeat(keys: LockKeys, lockId: string, token: number, ttlMs: number, hold: string, index?: string, atOnce = false): Promise<Alive | Lost> {
    return this.script('heartbeat', keys, [lockId, ttlMs, hold, -1, token], { index, atOnce }, (reply): Alive | Lost => {
      if (reply[0] === 'lost') return { outcome: 'lost', ...loss(reply) };
      const [, , fence, ends, ttl, revived, shortened] = reply;
      return {
        outcome: 'alive',
        fencingToken: Number(fence),
        ttlMs: Number(ttl),
        expiresAt: Number(ends),
        revived: revived === '1',
        ...(shortened !== '' && { keyTtlShortened: Number(shortened) }),
      };
    });
  }

  /** @param fence 0 = unknown @param hold '-' = all */
  release(keys: LockKeys, lockId: string, fence: number, hold: string, index?: string): Promise<Released | AlreadyReleased | NotHeld> {
    const released = this.script('release', keys, [lockId, fence, hold], { index }, (reply): Released | AlreadyReleased | NotHeld => {
      if (reply[0] === 'alreadyReleased') return { outcome: 'alreadyReleased' };
      if (reply[0] === 'notHeld') return { outcome: 'notHeld', ...loss(reply) };
      return { outcome: 'released', expiredBefore: reply[2] === '1', holdsLeft: Number(reply[3]) };
    });
    return index && this.apart ? this.afterwards(released, index, [lockId]) : released;
  }

  /**
   * Ends waits for one key, in one step. If Redis can't be asked it is told as soon as it is back.
   * @param since leases granted before this ms of Redis' clock are left alone; 0 = none
   * @returns who holds it, and for each leaver what is its own in spite of it
   */
  leave(keys: LockKeys, leavers: Leaver[], mode: OnLeave, since = 0): Promise<{ report: Report; grants: Array<Grant | undefined> }> {
    return this.leaving(keys, leavers, mode, { since, latest: 0 }).catch((error: unknown) => {
      for (const { lockId, index } of leavers) this.disown(keys, lockId, index, 'back', { since, latest: 0 });
      return Promise.reject(error);
    });
  }

  /** Gives back, in the background, what nobody here will use: a grant, a place in the line, a call still under way. */
  disown(keys: LockKeys, lockId: string, index: string | undefined, mode: OnLeave, call: Call = { since: 0, latest: 0 }): void {
    void this.leaving(keys, [{ lockId, index, keepMs: 0 }], mode, call, true).catch(() => {});
  }

  private leaving(
    keys: LockKeys,
    leavers: Leaver[],
    mode: OnLeave,
    { since, latest }: Call,
    inBackground = false,
  ): Promise<{ report: Report; grants: Array<Grant | undefined> }> {
    const all = [...keys.all];
    const args: Array<string | number> = [mode, since, latest, MARK_MS];
    for (const { lockId, index, keepMs } of leavers) {
      const place = index && !this.apart ? all.push(index) : 0;
      args.push(lockId, place, keepMs);
    }
    const left = this.script('leave', keys, args, { all, inBackground, ...(inBackground && { limitMs: MARK_MS }) }, (reply) => {
      const [, now, state, ...results] = reply as unknown as [string, number, Reply, ...Array<string | [number, number, number]>];
      const grants = results.map((result) => (typeof result === 'string' ? undefined : grant(['yours', now, ...result], 0)));
      return { report: report(state), grants };
    });
    if (!this.apart) return left;
    return leavers.reduce((before, { lockId, index }) => (index ? this.afterwards(before, index, [lockId]) : before), left);
  }

  /**
   * Serves the line and tells what changed for waiters of this process.
   * @param readdress where messages for these waiters have to go from now on is `channel`
   */
  look(keys: LockKeys, channel: string, lockIds: string[], readdress: boolean): Promise<{ nextMs: number; told: boolean; concerned: string[] }> {
    return this.script('look', keys, [channel, readdress ? 1 : 0, ...lockIds], {}, ([, , nextMs, told, ...concerned]) => ({
      nextMs: Number(nextMs),
      told: told === '1',
      concerned: concerned.map(String),
    }));
  }

  status(keys: LockKeys): Promise<{ holders: Array<Holder | ForeignHolder>; queue: number; fencingToken: number }> {
    return this.script('status', keys, [], {}, ([, now, , keyTtl, kind, queue, fence, ...records]) => {
      const known = records.map((record) => holder(String(record), Number(now)));
      return {
        holders: kind === 'foreign' ? [{ foreign: true, expiresInMs: Number(keyTtl) }] : known.filter(({ expiresInMs }) => expiresInMs > 0),
        queue: Number(queue),
        fencingToken: Number(fence),
      };
    });
  }

  /** On a cluster the index of an execution lies on another slot than the lock, so no script can touch both. */
  private get apart(): boolean {
    return this.connection.client.isCluster === true;
  }

  /** Strikes locks off an index that no script could reach. */
  private async afterwards<T>(done: Promise<T>, index: string, lockIds: string[]): Promise<T> {
    const result = await done;
    await this.connection.run({ call: (client) => client.hdel(index, ...lockIds) });
    return result;
  }

  private script<T>(
    name: ScriptName,
    keys: LockKeys,
    args: Array<string | number>,
    { index, all, limitMs, inBackground, atOnce }: { index?: string | undefined; all?: string[]; limitMs?: number; inBackground?: boolean; atOnce?: boolean },
    read: (reply: Reply) => T,
  ): Promise<T> {
    const sent = performance.now();
    const named = all ?? (index && !this.apart ? [...keys.all, index] : keys.all);
    let asText = false;
    return this.connection.run({
      call: (client) => this.scripts.run(client, name, named, args, asText),
      mend: (error) => !asText && (asText = this.scripts.needsText(error)),
      read: (answer) => {
        const reply: Reply = typeof answer === 'string' ? answer.split(' ') : answer;
        if (reply[0] === 'wrongType') throw wrongType(keys.key, String(reply[1]));
        this.clock.learn(Number(reply[1]), sent);
        return read(reply);
      },
      ...(limitMs !== undefined && { limitMs }),
      ...(inBackground && { inBackground }),
      ...(atOnce && { atOnce }),
    });
  }

  /**
   * A script that may grant. It carries the latest time, by Redis' clock, at which it may: a command that was given up
   * can still arrive.
   */
  private async granting<T>(granting: Granting<T>): Promise<T> {
    const until = performance.now() + this.connection.limitMs;
    const { name, caller, waitMs, stays, args, read } = granting;
    const { keys, lockId, index, ttlMs } = caller;
    if (index && this.apart) {
      await this.connection.run({
        call: (client) => this.scripts.run(client, 'intend', [index], [lockId, keys.full, ttlMs + waitMs], true),
        limitMs: remaining(until),
      });
    }
    for (;;) {
      if (!this.clock.known) await this.probed(keys, until);
      const left = remaining(until);
      const call = { since: this.now(), latest: this.clock.in(left) };
      const asked = performance.now();
      try {
        const answer = await this.script(name, keys, args(call.latest), { index, limitMs: left }, (reply) =>
          reply[0] === 'late' ? LATE : read(reply, asked),
        );
        if (answer !== LATE) return answer;
      } catch (error) {
        // Unknown whether it was granted; it may even be granted yet.
        if (!stays && error instanceof RedisLockError && error.code === 'unavailable') this.disown(keys, lockId, index, 'back', call);
        return Promise.reject(error);
      }
      // Redis' clock is ahead of our idea of it (the answer has set that right), or the limit is over.
      if (performance.now() >= until) return Promise.reject(this.connection.timeout());
    }
  }

  /** One probe for all who come at once. One that failed may have failed for its own key: then each asks for itself. */
  private async probed(keys: LockKeys, until: number): Promise<void> {
    if (this.probing) {
      await this.probing;
      if (!this.clock.known) await this.probe(keys, remaining(until));
      return;
    }
    const probe = this.probe(keys, remaining(until));
    this.probing = probe.catch(() => {}).finally(() => (this.probing = undefined));
    await probe;
  }

  /** Redis' time, and whether this user may run all that the scripts need. */
  private async probe(keys: LockKeys, limitMs: number): Promise<void> {
    const sent = performance.now();
    const [, now, missing] = await this.connection.run({
      call: (client) => this.scripts.run(client, 'probe', [keys.probe], [PROBE_MS], true),
      limitMs,
    });
    if (missing) throw missingCommand(String(missing), `Redis at ${this.connection.server}`);
    this.clock.learn(Number(now), sent);
  }
}

const LATE = Symbol('late');
const remaining = (until: number) => Math.max(1, until - performance.now());

import type Redis from 'ioredis';
import { RedisClock } from './clock';
import { Connection, clientFrom, type Client, type Source } from './connection';
import { RedisLockError, missingCommand, wrongType } from './errors';
import { lockKeys, type LockKeys } from './keys';
import { grant, holder, loss, report } from './replies';
import { Scripts, type Reply, type ScriptName } from './scripts';
import type { Alive, AlreadyReleased, BusyReason, ForeignHolder, Grant, Holder, Lost, NotHeld, NotStolen, NotStolenReason, Released } from './types';
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

export type AcquireReply =
  | { kind: 'acquired'; grant: Grant }
  | { kind: 'waiting'; ticket: number; nextMs: number }
  | { kind: 'busy'; reason: BusyReason; holders: Array<Holder | ForeignHolder>; queue: number };

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

  /** A lower bound of Redis' clock; 0 while it is unknown. */
  now(): number {
    return this.clock.in(-CLOCK_SLACK_MS);
  }

  async acquire(caller: Caller, wait: Wait, stealAfterMs: number): Promise<AcquireReply> {
    const { lockId, ttlMs, terms, whose } = caller;
    const { waitMs, channel, arrived } = wait;
    // One who is in line already stays there when an answer fails to come, and will learn of a grant later.
    const stays = arrived > 0;
    const reply = await this.granting('acquire', caller, Math.max(0, waitMs), stays, (latest) => [
      lockId, ttlMs, latest, terms, whose, waitMs, channel, arrived, stealAfterMs,
    ]);
    if (reply[0] === 'acquired') return { kind: 'acquired', grant: grant(reply, ttlMs) };
    if (reply[0] === 'waiting') return { kind: 'waiting', ticket: Number(reply[2]), nextMs: Number(reply[5]) };
    const { reason, holders, queue } = report(reply);
    return { kind: 'busy', reason: reason as BusyReason, holders, queue };
  }

  async steal(caller: Caller, condition: string, value: number): Promise<{ outcome: 'stolen'; grant: Grant } | NotStolen> {
    const { lockId, ttlMs, terms, whose } = caller;
    const reply = await this.granting('steal', caller, 0, false, (latest) => [
      lockId, ttlMs, latest, terms, whose, condition, value, YOUNGEST_MS,
    ]);
    if (reply[0] === 'stolen') return { outcome: 'stolen', grant: grant(reply, ttlMs) };
    const { reason, holders, queue } = report(reply);
    return { outcome: 'notStolen', reason: reason as NotStolenReason, holders, queue };
  }

  /** @param token 0 = unknown @param ttlMs 0 = as before @param hold '-' = adds none */
  async heartbeat(keys: LockKeys, lockId: string, token: number, ttlMs: number, hold: string, index?: string): Promise<Alive | Lost> {
    const reply = await this.script('heartbeat', keys, [lockId, ttlMs, hold, -1, token], index);
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
  }

  /** @param fence 0 = unknown @param hold '-' = all */
  async release(keys: LockKeys, lockId: string, fence: number, hold: string, index?: string): Promise<Released | AlreadyReleased | NotHeld> {
    const reply = await this.script('release', keys, [lockId, fence, hold], index);
    if (reply[0] === 'alreadyReleased') return { outcome: 'alreadyReleased' };
    if (reply[0] === 'notHeld') return { outcome: 'notHeld', ...loss(reply) };
    return { outcome: 'released', expiredBefore: reply[2] === '1', holdsLeft: Number(reply[3]) };
  }

  /**
   * Ends a wait. If Redis can't be asked it is told as soon as it is back.
   * @param since leases granted before this ms of Redis' clock are left alone; 0 = none
   */
  async leave(keys: LockKeys, lockId: string, index: string | undefined, mode: OnLeave, since = 0): Promise<{ grant?: Grant; queue: number }> {
    const reply = await this.script('leave', keys, [lockId, mode, since, 0, 0], index).catch((error: unknown) => {
      this.disown(keys, lockId, index, 'back', { since, latest: 0 });
      return Promise.reject(error);
    });
    if (reply[0] === 'yours') return { grant: grant(reply, 0), queue: Number(reply[5]) };
    return { queue: Number(reply[3]) };
  }

  /** Gives back, in the background, what nobody here will use: a grant, a place in the line, a call still under way. */
  disown(keys: LockKeys, lockId: string, index: string | undefined, mode: OnLeave, { since, latest }: Call = { since: 0, latest: 0 }): void {
    void this.script('leave', keys, [lockId, mode, since, latest, MARK_MS], index, MARK_MS, true).catch(() => {});
  }

  async look(keys: LockKeys, channel: string, witness: string): Promise<{ nextMs: number; known: boolean; granted: string[] }> {
    const [, , nextMs, , known, ...granted] = await this.script('look', keys, [channel, witness]);
    return { nextMs: Number(nextMs), known: known === '1', granted: granted.map(String) };
  }

  async status(keys: LockKeys): Promise<{ holders: Array<Holder | ForeignHolder>; queue: number; fencingToken: number }> {
    const [, now, , keyTtl, kind, queue, fence, ...records] = await this.script('status', keys, []);
    const known = records.map((record) => holder(String(record), Number(now)));
    return {
      holders: kind === 'foreign' ? [{ foreign: true, expiresInMs: Number(keyTtl) }] : known.filter(({ expiresInMs }) => expiresInMs > 0),
      queue: Number(queue),
      fencingToken: Number(fence),
    };
  }

  private async script(
    name: ScriptName,
    keys: LockKeys,
    args: Array<string | number>,
    index?: string,
    limitMs?: number,
    inBackground?: boolean,
  ): Promise<Reply> {
    const apart = this.connection.client.isCluster === true;
    const all = index && !apart ? [...keys.all, index] : keys.all;
    const reply = await this.connection.run((client) => this.scripts.run(client, name, all, args), limitMs, inBackground);
    if (reply[0] === 'wrongType') throw wrongType(keys.key, String(reply[1]));
    this.clock.learn(Number(reply[1]));
    if (index && apart && (name === 'release' || name === 'leave')) {
      await this.connection.run((client) => client.hdel(index, String(args[0])));
    }
    return reply;
  }

  /**
   * A script that may grant. It carries the latest time, by Redis' clock, at which it may: a command that was given up
   * can still arrive.
   */
  private async granting(
    name: 'acquire' | 'steal',
    { keys, lockId, index, ttlMs }: Caller,
    waitMs: number,
    stays: boolean,
    args: (latest: number) => Array<string | number>,
  ): Promise<Reply> {
    const until = performance.now() + this.connection.limitMs;
    const left = () => Math.max(1, until - performance.now());
    if (index && this.connection.client.isCluster) {
      await this.connection.run((client) => this.scripts.run(client, 'intend', [index], [lockId, keys.full, ttlMs + waitMs]), left());
    }
    for (;;) {
      if (!this.clock.known) {
        // One for all who come at once. One that failed may have failed for its own key: then each asks for itself.
        if (this.probing) {
          await this.probing;
          if (!this.clock.known) await this.probe(keys, left());
        } else {
          const probe = this.probe(keys, left());
          this.probing = probe.catch(() => {}).finally(() => (this.probing = undefined));
          await probe;
        }
      }
      const call = { since: this.now(), latest: this.clock.in(left()) };
      const reply = await this.script(name, keys, args(call.latest), index, left()).catch((error: unknown) => {
        // Unknown whether it was granted; it may even be granted yet.
        if (!stays && error instanceof RedisLockError && error.code === 'unavailable') this.disown(keys, lockId, index, 'back', call);
        return Promise.reject(error);
      });
      if (reply[0] !== 'late') return reply;
      // Redis' clock is ahead of our idea of it (the answer has set that right), or the limit is over.
      if (performance.now() >= until) return Promise.reject(this.connection.timeout());
    }
  }

  /** Redis' time, and whether this user may run all that the scripts need. */
  private async probe(keys: LockKeys, limitMs: number): Promise<void> {
    const [, now, missing] = await this.connection.run((client) => this.scripts.run(client, 'probe', [keys.probe], [PROBE_MS]), limitMs);
    if (missing) throw missingCommand(String(missing), `Redis at ${this.connection.server}`);
    this.clock.learn(Number(now));
  }
}

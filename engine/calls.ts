import { RedisClock } from './clock';
import { Connection, clientFrom, type Client, type Source } from './connection';
import { RedisLockError, missingCommand, wrongType } from './errors';
import type { LockKeys } from './keys';
import { Scripts, type Reply, type ScriptName } from './scripts';
import type { Ask } from './validate';

/** A waiter has so long to claim what was handed to it. */
export const CLAIM_MS = 3000;
/** So many ids at most go into one script: arguments of one call in Lua are limited. */
export const MOST_IDS = 500;
const PROBE_MS = 1000;
/** Redis' clock is known this well, drift since the last answer included. */
const CLOCK_SLACK_MS = 50;

/** Who asks, for what. */
export interface Caller extends Ask {
  keys: LockKeys;
  lockId: string;
  /** The index of its execution. */
  index: string | undefined;
  /** How it stands in line, see `policy` in validate.ts; absent: in turn. */
  policy?: Array<string | number>;
}

/** A call without an answer, to tell what it did from what another one did: Redis' time, at least, of its start, and the latest at which it may grant. */
export interface GivenUp {
  since: number;
  latest: number;
}

/** A call of a script that may grant. */
interface Granting<T> {
  name: 'acquire' | 'acquireAll' | 'steal' | 'stealAll' | 'inherit';
  caller: Caller;
  /** KEYS of a script about several locks, of which the caller names the first. */
  all?: string[];
  /** Ms that a place in line may last. */
  waitMs: number;
  /** No answer came: unknown whether it was granted; it may even be granted yet. */
  onUnknown: (call: GivenUp) => void;
  args: (latest: number) => Array<string | number>;
  read: (reply: Reply, asked: number) => T;
}

export interface CallOptions {
  commandTimeoutMs: number;
  fencingRetentionMs: number;
  maxWaiters: number;
}

/** Calls of scripts on one Redis, with all that belongs to a call: time limit, latest time, permissions, Redis' clock. */
export class Calls {
  readonly connection: Connection;
  readonly makeSubscriber: () => Client;
  private readonly clock = new RedisClock();
  private readonly scripts: Scripts;
  private probing: Promise<void> | undefined;

  constructor(source: Source, options: CallOptions) {
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

  /** On a cluster the index of an execution lies on another slot than the lock, so no script can touch both. */
  get apart(): boolean {
    return this.connection.client.isCluster === true;
  }

  /** Ms since a moment of Redis' clock, at most. */
  since(redisMs: number): number {
    return this.clock.since(redisMs);
  }

  /** A lower bound of Redis' clock; 0 while it is unknown. */
  now(): number {
    return this.clock.in(-CLOCK_SLACK_MS);
  }

  /**
   * Runs a script in one round trip.
   * @param all its KEYS, where they are not those of the lock and, apart from a cluster, `index`
   * @param atOnce it has left before this returns
   * @throws RedisLockError
   */
  script<T>(
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
  async granting<T>(granting: Granting<T>): Promise<T> {
    const until = performance.now() + this.connection.limitMs;
    const { name, caller, all, waitMs, onUnknown, args, read } = granting;
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
        const answer = await this.script(name, keys, args(call.latest), { index, limitMs: left, ...(all && { all }) }, (reply) =>
          reply[0] === 'late' ? LATE : read(reply, asked),
        );
        if (answer !== LATE) return answer;
      } catch (error) {
        if (error instanceof RedisLockError && error.code === 'unavailable') onUnknown(call);
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

import type Redis from 'ioredis';
import { Calls, type CallOptions, type Caller, type GivenUp } from './calls';
import type { Source } from './connection';
import { LockOptionError, wrongType } from './errors';
import { lockKeys, type LockKeys } from './keys';
import { busy, doneBefore, doneMark, grant, holder, loss, report, superseded, type Report } from './replies';
import type { Reply } from './scripts';
import type { Alive, AlreadyReleased, Busy, DoneBefore, DoneMark, ForeignHolder, Grant, Holder, LossReason, Lost, NotHeld, NotStolen, NotStolenReason, Released } from './types';

/** How long an acquire that was given up is refused, should it still arrive. */
const MARK_MS = 60_000;
/** `any` leaves a grant alone for so long: of eight contenders one robs the holder, not each the one before. */
const YOUNGEST_MS = 5000;

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

/** Granted, and `performance.now()` of the moment before it was asked for: the lease counts from there. */
export interface Won {
  outcome: 'acquired';
  grant: Grant;
  asked: number;
}

export type AcquireReply = Won | { outcome: 'waiting'; ticket: number; nextMs: number } | Busy | DoneBefore;

/** What a heartbeat changes, all of it optional. */
export interface Renewal {
  /** 0 = unknown. */
  token?: number;
  /** 0 = as before. */
  ttlMs?: number;
  /** '-' = adds none. */
  hold?: string;
  /** '-' = as before; 0 = announces none. */
  renewEveryMs?: number | '-';
  index?: string | undefined;
  atOnce?: boolean;
}

/** One whose wait ends. */
export interface Leaver {
  lockId: string;
  index: string | undefined;
  /** Its place in line is kept so long for its return; 0 = not; -1 = it leaves only if it has to. */
  keepMs: number;
  /** It may have to go for another reason than its time. */
  hasPolicy?: boolean;
}

/** What one who left is told: the lock is its own in spite of it, why it had to go, or nothing of the kind. */
export type Left = Grant | Busy | DoneBefore | undefined;

/** Each transition of a lock as one call of its script, with typed answers. */
export class Transitions {
  readonly calls: Calls;
  private newest: LockKeys | undefined;

  /** @throws LockOptionError */
  constructor(source: Source, options: CallOptions) {
    this.calls = new Calls(source, options);
  }

  /** The key prefix that the client adds by itself. */
  get prefix(): string {
    return (this.calls.connection.client as Redis).options.keyPrefix ?? '';
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

  acquire(caller: Caller, wait: Wait, stealAfterMs: number): Promise<AcquireReply> {
    const { keys, lockId, index, ttlMs, terms, whose, policy = [] } = caller;
    const { waitMs, channel, arrived } = wait;
    const plain = waitMs < 0 && stealAfterMs < 0 && policy.length === 0;
    return this.calls.granting({
      name: 'acquire',
      caller,
      waitMs: Math.max(0, waitMs),
      // One who is in line already stays there when an answer fails to come, and will learn of a grant later.
      onUnknown: (call) => arrived === 0 && this.disown(keys, lockId, index, 'back', call),
      args: (latest) =>
        plain ? [lockId, ttlMs, latest, terms, whose] : [lockId, ttlMs, latest, terms, whose, waitMs, channel, arrived, stealAfterMs, ...policy],
      read: (reply, asked): AcquireReply => {
        if (reply[0] === 'acquired') return { outcome: 'acquired', asked, grant: grant(reply, ttlMs) };
        if (reply[0] === 'waiting') return { outcome: 'waiting', ticket: Number(reply[2]), nextMs: Number(reply[3]) };
        if (reply[0] === 'doneBefore') return doneBefore(String(reply[2]));
        if (reply[0] === 'superseded') return superseded(report(reply[3] as unknown as Reply), String(reply[2]));
        if (reply[0] === 'otherMode') throw otherMode(keys.key);
        return busy(report(reply));
      },
    });
  }

  steal(caller: Caller, condition: string, value: number): Promise<{ outcome: 'stolen'; grant: Grant } | NotStolen> {
    const { keys, lockId, index, ttlMs, terms, whose } = caller;
    return this.calls.granting({
      name: 'steal',
      caller,
      waitMs: 0,
      onUnknown: (call) => this.disown(keys, lockId, index, 'back', call),
      args: (latest) => [lockId, ttlMs, latest, terms, whose, condition, value, YOUNGEST_MS],
      read: (reply): { outcome: 'stolen'; grant: Grant } | NotStolen => {
        return reply[0] === 'stolen' ? { outcome: 'stolen', grant: grant(reply, ttlMs) } : notStolen(reply);
      },
    });
  }

  /** Several locks in one step, all or none. Not on a cluster. @param callers of the same execution, for the same time */
  acquireAll(callers: Caller[]): Promise<{ outcome: 'acquired'; asked: number; grants: Grant[] } | Refused> {
    const [caller] = callers as [Caller];
    const { ttlMs, terms, whose } = caller;
    return this.calls.granting({
      name: 'acquireAll',
      caller,
      all: keysOfAll(callers),
      waitMs: 0,
      onUnknown: (call) => callers.forEach(({ keys, lockId, index }) => this.disown(keys, lockId, index, 'back', call)),
      args: (latest) => [ttlMs, latest, terms, whose, ...callers.map(({ lockId }) => lockId)],
      read: (reply, asked) => {
        if (reply[0] === 'notAll') return refused(reply, callers, (answer) => busy(report(answer)));
        const grants = reply.slice(2).map((answer) => grant(typeof answer === 'string' ? answer.split(' ') : (answer as unknown as Reply), ttlMs));
        return { outcome: 'acquired' as const, asked, grants };
      },
    });
  }

  /** Several locks in one step, all or none; those that are free go along. Not on a cluster. */
  stealAll(callers: Caller[], condition: string, value: number): Promise<{ outcome: 'stolen'; asked: number; grants: Grant[] } | (NotStolen & { key: string })> {
    const [caller] = callers as [Caller];
    const { ttlMs, terms, whose } = caller;
    return this.calls.granting({
      name: 'stealAll',
      caller,
      all: keysOfAll(callers),
      waitMs: 0,
      onUnknown: (call) => callers.forEach(({ keys, lockId, index }) => this.disown(keys, lockId, index, 'back', call)),
      args: (latest) => [ttlMs, latest, terms, whose, condition, value, YOUNGEST_MS, ...callers.map(({ lockId }) => lockId)],
      read: (reply, asked) => {
        if (reply[0] === 'notAll') return refused(reply, callers, notStolen);
        return { outcome: 'stolen' as const, asked, grants: reply.slice(2).map((answer) => grant(answer as unknown as Reply, ttlMs)) };
      },
    });
  }

  /**
   * The same lease with a new token, see lua/inherit.lua.
   * @param token as the caller knows it; 0 = unknown
   * @param before index of the attempt that it belonged to
   */
  inherit(caller: Caller, token: number, before?: string): Promise<{ outcome: 'inherited'; grant: Grant } | Lost> {
    const { lockId, index, ttlMs, terms, whose } = caller;
    const inherited = this.calls.granting({
      name: 'inherit',
      caller,
      waitMs: 0,
      // It is held before and after: whichever token it has, its execution is this one.
      onUnknown: () => {},
      args: (latest) => [lockId, ttlMs, latest, terms, whose, token],
      read: (reply): { outcome: 'inherited'; grant: Grant } | Lost =>
        reply[0] === 'inherited' ? { outcome: 'inherited', grant: grant(reply, ttlMs) } : { outcome: 'lost', ...loss(reply) },
    });
    return before && before !== index ? this.afterwards(inherited, before, [lockId]) : inherited;
  }

  heartbeat(keys: LockKeys, lockId: string, { token = 0, ttlMs = 0, hold = '-', renewEveryMs = '-', index, atOnce = false }: Renewal): Promise<Alive | Lost> {
    return this.calls.script('heartbeat', keys, [lockId, ttlMs, hold, token, renewEveryMs], { index, atOnce }, (reply): Alive | Lost => {
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

  /** @param fence 0 = unknown @param hold '-' = all @param why '' = the holder gives it back; else its holder will be told that it lost it, for this reason @param done see `doneArguments` in validate.ts */
  release(keys: LockKeys, lockId: string, fence: number, hold: string, index?: string, why: LossReason | '' = '', done: Array<string | number> = []): Promise<Released | AlreadyReleased | NotHeld> {
    const released = this.calls.script('release', keys, [lockId, fence, hold, why, ...done], { index }, (reply): Released | AlreadyReleased | NotHeld => {
      if (reply[0] === 'alreadyReleased') return { outcome: 'alreadyReleased' };
      if (reply[0] === 'notHeld') return { outcome: 'notHeld', ...loss(reply) };
      return { outcome: 'released', expiredBefore: reply[2] === '1', holdsLeft: Number(reply[3]) };
    });
    return index && this.calls.apart ? this.afterwards(released, index, [lockId]) : released;
  }

  /**
   * Ends waits for one key, in one step. If Redis can't be asked it is told as soon as it is back.
   * @param since leases granted before this ms of Redis' clock are left alone; 0 = none
   * @returns who holds it, and for each leaver what is its own in spite of it
   */
  leave(keys: LockKeys, leavers: Leaver[], mode: OnLeave, since = 0): Promise<{ report: Report; results: Left[] }> {
    return this.leaving(keys, leavers, mode, { since, latest: 0 }).catch((error: unknown) => {
      for (const { lockId, index } of leavers) this.disown(keys, lockId, index, 'back', { since, latest: 0 });
      return Promise.reject(error);
    });
  }

  /** Gives back, in the background, what nobody here will use: a grant, a place in the line, a call still under way. */
  disown(keys: LockKeys, lockId: string, index: string | undefined, mode: OnLeave, call: GivenUp = { since: 0, latest: 0 }): void {
    void this.leaving(keys, [{ lockId, index, keepMs: 0 }], mode, call, true).catch(() => {});
  }

  private leaving(
    keys: LockKeys,
    leavers: Leaver[],
    mode: OnLeave,
    { since, latest }: GivenUp,
    inBackground = false,
  ): Promise<{ report: Report; results: Left[] }> {
    const all = [...keys.all];
    const args: Array<string | number> = [mode, since, latest, MARK_MS];
    for (const { lockId, index, keepMs, hasPolicy } of leavers) {
      const place = index && !this.calls.apart ? all.push(index) : 0;
      args.push(lockId, place, keepMs, hasPolicy ? 1 : 0);
    }
    const left = this.calls.script('leave', keys, args, { all, inBackground, ...(inBackground && { limitMs: MARK_MS }) }, (reply) => {
      const [, now, state, ...answers] = reply as unknown as [string, number, Reply, ...Array<string | Reply>];
      const present = report(state);
      const results = answers.map((answer): Left => {
        if (typeof answer === 'string') return undefined;
        if (answer[0] === 'superseded') return superseded(present, String(answer[1]));
        if (answer[0] === 'doneBefore') return doneBefore(String(answer[1]));
        return grant(['yours', now, ...answer], 0);
      });
      return { report: present, results };
    });
    if (!this.calls.apart) return left;
    return leavers.reduce((before, { lockId, index }) => (index ? this.afterwards(before, index, [lockId]) : before), left);
  }

  /**
   * Serves the line and tells what changed for waiters of this process.
   * @param readdress where messages for these waiters have to go from now on is `channel`
   */
  look(keys: LockKeys, channel: string, lockIds: string[], readdress: boolean): Promise<{ nextMs: number; told: boolean; unknown: boolean; concerned: string[] }> {
    return this.calls.script('look', keys, [channel, readdress ? 1 : 0, ...lockIds], {}, ([, , nextMs, told, unknown, ...concerned]) => ({
      nextMs: Number(nextMs),
      told: told === '1',
      unknown: unknown === '1',
      concerned: concerned.map(String),
    }));
  }

  status(keys: LockKeys): Promise<{ holders: Array<Holder | ForeignHolder>; holderCount: number; queue: number; fencingToken: number; done?: DoneMark }> {
    return this.calls.script('status', keys, [], {}, ([, now, , keyTtl, kind, queue, fence, done, living, ...records]) => {
      const known = records.map((record) => holder(String(record), Number(now)));
      return {
        holders: kind === 'foreign' ? [{ foreign: true, expiresInMs: Number(keyTtl) }] : known.filter(({ expiresInMs }) => expiresInMs > 0),
        holderCount: kind === 'foreign' ? 1 : Number(living),
        queue: Number(queue),
        fencingToken: Number(fence),
        ...(done !== '' && { done: doneMark(String(done)) }),
      };
    });
  }

  /** Strikes locks off an index that no script could reach. */
  private async afterwards<T>(done: Promise<T>, index: string, lockIds: string[]): Promise<T> {
    const result = await done;
    await this.calls.connection.run({ call: (client) => client.hdel(index, ...lockIds) });
    return result;
  }
}

/** One of several locks can't be had, so none was taken. */
export type Refused = Busy & { key: string };

/** KEYS of a script about several locks. */
function keysOfAll(callers: Caller[]): string[] {
  const [first] = callers;
  return [...callers.flatMap(({ keys }) => keys.all), ...(first?.index ? [first.index] : [])];
}

/** { 'notAll', now, which of them, answer for it } */
function refused<T>(reply: Reply, callers: Caller[], read: (answer: Reply) => T): T & { key: string } {
  const { key } = (callers[Number(reply[2]) - 1] as Caller).keys;
  const answer = reply[3] as unknown as Reply;
  if (answer[0] === 'wrongType') throw wrongType(key, String(answer[1]));
  return { ...read(answer), key };
}

function notStolen(reply: Reply): NotStolen {
  const { reason, holders, queue } = report(reply);
  return { outcome: 'notStolen', reason: reason as NotStolenReason, holders, queue };
}

function otherMode(key: string): LockOptionError {
  return new LockOptionError('mode', `can't be changed while the lock "${key}" is held; release it first, or take it exclusively from the start`);
}

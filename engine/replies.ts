import type { Reply } from './scripts';
import type { Busy, BusyReason, By, DoneBefore, DoneMark, ForeignHolder, Grant, Holder, LossReason, Owner } from './types';
import { SHARED_LIMIT } from './validate';

/** Turns what the scripts answer into the shapes of the API. The scripts' headers say what stands where. */

const RECORD = /^(\d+) (\d+) (\d+) (\d+) (\d+) (\d+) (\d+) (\d+) (\S+) ([\s\S]*)$/;

export function owner(record: string): Owner {
  try {
    const value: unknown = JSON.parse(record || '{}');
    return typeof value === 'object' && value !== null ? (value as Owner) : {};
  } catch {
    return {};
  }
}

/** A holder's record, as written by `record()` in lua/shared/hold.lua. */
export function holder(text: string, nowMs: number): Holder {
  const [, ends, fence, ttl, since, beat, renew, limit, , , who] = RECORD.exec(text) ?? [];
  return {
    fencingToken: Number(fence),
    acquiredAt: Number(since),
    lastHeartbeatAt: Number(beat),
    silentMs: nowMs - Number(beat),
    expiresInMs: Number(ends) - nowMs,
    ttlMs: Number(ttl),
    renewEveryMs: Number(renew),
    limit: Number(limit),
    mode: Number(limit) >= SHARED_LIMIT ? 'shared' : 'exclusive',
    owner: owner(who ?? ''),
  };
}

/** `till at fence owner`, a line break, the result as JSON */
export function doneMark(text: string): DoneMark {
  const [, till, at, fence, who, result] = /^(\d+) (\d+) (\d+) ([^\n]*)\n([\s\S]*)$/.exec(text) ?? [];
  return {
    at: Number(at),
    until: Number(till),
    fencingToken: Number(fence),
    owner: owner(who ?? ''),
    ...(result && { result: JSON.parse(result) as unknown }),
  };
}

export const doneBefore = (text: string): DoneBefore => ({ outcome: 'doneBefore', done: doneMark(text) });

export interface Report {
  reason: string;
  /** Length of the line. */
  queue: number;
  nextMs: number;
  holders: Array<Holder | ForeignHolder>;
}

/** { kind, now, reason, length of the line, ms to the next change, foreign TTL or '', holders… } */
export function report(reply: Reply): Report {
  const [, now, reason, queue, nextMs, foreign, ...records] = reply;
  const holders: Array<Holder | ForeignHolder> = records.map((record) => holder(String(record), Number(now)));
  if (foreign !== '') holders.push({ foreign: true, expiresInMs: Number(foreign) });
  return { reason: String(reason), queue: Number(queue), nextMs: Number(nextMs), holders };
}

/** @param newer owner of the one that came */
export function superseded(state: Report, newer: string): Busy {
  return { ...busy(state), reason: 'superseded', newer: owner(newer) };
}

export const busy = ({ reason, holders, queue }: Report): Busy => ({ outcome: 'busy', reason: reason as BusyReason, holders, queue });

/** { kind, now, reason, at, fence of who has it, owner of who has it } */
export function loss(reply: Reply): { reason: LossReason; at: number; by?: By } {
  const [, , reason, at, fence, who] = reply;
  const by = Number(fence) > 0 ? { fencingToken: Number(fence), owner: owner(String(who)) } : undefined;
  return { reason: reason as LossReason, at: Number(at), ...(by && { by }) };
}

/**
 * { kind, now, fence } (as asked) | { kind, now, fence, ends, ttl, length of the line, record of the robbed | 'foreign' | '', '1' if held already }
 */
export function grant(reply: Reply, askedMs: number): Grant {
  const [kind, now, fence, ends = Number(now) + askedMs, ttl = askedMs, queueOrRobbed, robbedOrNone, again] = reply;
  const stolen = kind === 'stolen';
  const robbed = String((stolen ? queueOrRobbed : robbedOrNone) ?? '');
  return {
    fencingToken: Number(fence),
    expiresAt: Number(ends),
    ttlMs: Number(ttl),
    queue: stolen ? 0 : Number(queueOrRobbed ?? 0),
    again: again === '1',
    waitedMs: 0,
    ...(robbed === 'foreign' && { robbed: { foreign: true as const, expiresInMs: -1 } }),
    ...(robbed !== '' && robbed !== 'foreign' && { robbed: holder(robbed, Number(now)) }),
  };
}

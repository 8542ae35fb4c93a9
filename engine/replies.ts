import type { Reply } from './scripts';
import type { By, ForeignHolder, Grant, Holder, LossReason, Owner } from './types';

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
    owner: owner(who ?? ''),
  };
}

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

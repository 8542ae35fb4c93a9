import { LockOptionError } from './errors';
import type { AcquireOptions, Owner } from './types';

const DAY = 86_400_000;
export const LONGEST_TTL = 30 * DAY;
const SHORTEST_TTL = 10;
const LONGEST_OWNER = 4096;
const LONGEST_RESULT = 4096;
/** A shared lock is a permit of one of so many, see lua/shared/read.lua. */
export const SHARED_LIMIT = 1_000_000;

/** @throws LockOptionError unless a whole number of ms within the bounds */
export function duration(option: string, value: number, least: number, most = LONGEST_TTL): number {
  if (typeof value !== 'number' || !Number.isFinite(value) || value < least || value > most) {
    throw new LockOptionError(option, `must be a number of milliseconds from ${least} to ${most}, not ${String(value)}`);
  }
  // Rounded up: a lease must not be shorter than what was asked for.
  return Math.ceil(value);
}

export const ttl = (value: number) => duration('ttlMs', value, SHORTEST_TTL);

function limit(value = 1): number {
  if (!Number.isInteger(value) || value < 1 || value > 1000) {
    throw new LockOptionError('limit', `must be a whole number from 1 to 1000, not ${String(value)}`);
  }
  return value;
}

/** Permits of the key: of a shared lock there is no end. */
function permits({ limit: value, mode = 'exclusive' }: Pick<AcquireOptions, 'limit' | 'mode'>): number {
  if (mode !== 'exclusive' && mode !== 'shared') throw new LockOptionError('mode', `must be 'exclusive' or 'shared', not ${JSON.stringify(mode)}`);
  if (mode === 'exclusive') return limit(value);
  if (value !== undefined) throw new LockOptionError('limit', 'has no meaning for a shared lock: leave it out, or the mode');
  return SHARED_LIMIT;
}

/** How a caller stands in line, as lua/acquire.lua has it from its tenth argument on. @param once see `Locks.acquireOnce` */
export function policy({ waiting = 'turn', settleMs, settleAtMostMs, waitMs }: Partial<AcquireOptions>, once: boolean): Array<string | number> {
  if (waiting !== 'turn' && waiting !== 'newest') throw new LockOptionError('waiting', `must be 'turn' or 'newest', not ${JSON.stringify(waiting)}`);
  const isNewest = waiting === 'newest';
  if (isNewest && waitMs === undefined) throw new LockOptionError('waiting', "'newest' is about those who wait, so it needs waitMs too");
  if (settleMs !== undefined && !isNewest) throw new LockOptionError('settleMs', "needs waiting: 'newest'");
  if (settleAtMostMs !== undefined && settleMs === undefined) throw new LockOptionError('settleAtMostMs', 'needs settleMs');
  if (!once && !isNewest) return [];
  const flags = `${once ? 'o' : ''}${isNewest ? 'n' : ''}`;
  if (settleMs === undefined) return [flags];
  const settle = duration('settleMs', settleMs, 1);
  const atMost = settleAtMostMs === undefined ? 0 : duration('settleAtMostMs', settleAtMostMs, settle);
  return [flags, settle, atMost];
}

/** What is left with a mark that something was done, as lua/release.lua has it. */
export function doneArguments({ doneForMs, result }: { doneForMs: number; result?: unknown }): [number, string] {
  const life = duration('doneForMs', doneForMs, 1);
  const text = result === undefined ? '' : json(result);
  if (Buffer.byteLength(text) > LONGEST_RESULT) throw new LockOptionError('result', `must not be larger than ${LONGEST_RESULT} bytes as JSON`);
  return [life, text];
}

/** JSON has no raw line break. */
function json(value: unknown): string {
  let text: string | undefined;
  try {
    text = JSON.stringify(value);
  } catch {
    // A circle, or a number that JSON does not know.
  }
  if (text === undefined) throw new LockOptionError('result', 'must be a value that JSON can hold');
  return text;
}

export function lockId(value: string): string {
  if (typeof value !== 'string' || !/^[\x21-\x7e]{1,128}$/.test(value)) {
    throw new LockOptionError('lockId', 'must be 1 to 128 printable ASCII characters without blanks');
  }
  return value;
}

/** Names of holds are joined by commas and blanks in the record, so both are encoded. '-' stands for none. */
export function hold(value: string | undefined): string {
  if (value === undefined) return '-';
  if (value === '' || value.length > 256) throw new LockOptionError('hold', 'must be a name of 1 to 256 characters');
  return encodeURIComponent(value).replace(/^-$/, '%2D');
}

/** The record is opaque to the scripts; JSON has no raw line break, on which they rely. */
export function ownerRecord(owner: Owner | undefined): string {
  if (owner === undefined) return '{}';
  const record = JSON.stringify(owner);
  if (Buffer.byteLength(record) > LONGEST_OWNER) throw new LockOptionError('owner', `must not be larger than ${LONGEST_OWNER} bytes as JSON`);
  return record;
}

/** What acquire and steal have in common, checked and encoded for the scripts. */
export interface Ask {
  ttlMs: number;
  owner: Owner;
  /** 'renew limit' and 'holds owner', as they stand in the stored record. */
  terms: string;
  whose: string;
}

export function ask(options: Pick<AcquireOptions, 'ttlMs' | 'limit' | 'mode' | 'owner' | 'hold' | 'renewEveryMs'>): Ask {
  return {
    ttlMs: ttl(options.ttlMs),
    owner: options.owner ?? {},
    terms: `${options.renewEveryMs === undefined ? 0 : duration('renewEveryMs', options.renewEveryMs, 1)} ${permits(options)}`,
    whose: `${hold(options.hold)} ${ownerRecord(options.owner)}`,
  };
}

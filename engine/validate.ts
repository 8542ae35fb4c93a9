import { LockOptionError } from './errors';
import type { AcquireOptions, Owner } from './types';

const DAY = 86_400_000;
export const LONGEST_TTL = 30 * DAY;
const SHORTEST_TTL = 10;
const LONGEST_OWNER = 4096;

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

export function ask(options: Pick<AcquireOptions, 'ttlMs' | 'limit' | 'owner' | 'hold' | 'renewEveryMs'>): Ask {
  return {
    ttlMs: ttl(options.ttlMs),
    owner: options.owner ?? {},
    terms: `${options.renewEveryMs === undefined ? 0 : duration('renewEveryMs', options.renewEveryMs, 1)} ${limit(options.limit)}`,
    whose: `${hold(options.hold)} ${ownerRecord(options.owner)}`,
  };
}

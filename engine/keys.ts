import { randomBytes, randomUUID } from 'node:crypto';
import { LockOptionError } from './errors';

/**
 * Every name that Redis gets to see: keys, hash fields and channels.
 *
 *   K                       what the user typed; a 16-digit number while held
 *   {K}:rl:lock  hash       "@<lock id>" holder · "fence" newest token · "lost", "floor" who lost it
 *                           "~<channel>" silent process · "!<lock id>" acquire that was given up
 *   {K}:rl:line  sorted set lock id of a waiter -> ticket
 *   {K}:rl:wait  hash       lock id of a waiter -> what it asked for
 *   {K}:rl:probe            scratch key, see lua/probe.lua
 *   rl:execution:<instance>:<execution>  hash: lock id -> K
 *   rl:wake:<random>        channel of one process
 *
 * The companions live in K's slot. K with a hash tag of its own, "a{b}c": {b}:rl:lock:a{b}c
 */
export interface LockKeys {
  /** As the user typed it. */
  key: string;
  /** With the client's key prefix, as Redis and the messages have it. */
  full: string;
  /** K, LOCK, LINE, WAIT: the KEYS of every script. */
  all: [string, string, string, string];
  probe: string;
}

const LONGEST_KEY = 1024;

/**
 * @param prefix the `keyPrefix` of the ioredis client, which adds it to every key by itself: the tag has to be that of
 * the whole name (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/, "hash tags")
 */
export function lockKeys(key: string, prefix = ''): LockKeys {
  if (typeof key !== 'string' || key === '') throw new LockOptionError('key', 'must be a text that is not empty');
  // At most three bytes for each unit of a text: most keys need no counting.
  if (key.length * 3 > LONGEST_KEY && Buffer.byteLength(key) > LONGEST_KEY) throw new LockOptionError('key', `must not be longer than ${LONGEST_KEY} bytes`);
  if (key.includes('rl:') && /^(rl:|\{.*\}:rl:)/s.test(key)) {
    throw new LockOptionError('key', 'is a name that Redis Lock uses itself ("rl:…", "{…}:rl:…"); choose another');
  }
  const full = prefix + key;
  if (!full.includes('}')) {
    const base = `{${full}}:rl:`;
    return { key, full, all: [key, `${base}lock`, `${base}line`, `${base}wait`], probe: `${base}probe` };
  }
  const name = companion(full, prefix, key);
  return { key, full, all: [key, name('lock'), name('line'), name('wait')], probe: name('probe') };
}

/** Companions of a key with a hash tag. */
function companion(full: string, prefix: string, key: string): (part: string) => string {
  const tag = hashTag(full);
  if (tag === undefined) {
    throw new LockOptionError('key', 'has a "}" without a valid hash tag "{…}" before it; leave the "}" out, or write a tag');
  }
  // A tag in the prefix is the tag of every key of this client already.
  const inPrefix = hashTag(prefix) !== undefined;
  return (part) => (inPrefix ? `rl:${part}:${key}` : `{${tag}}:rl:${part}:${key}`);
}

/** The part of a key that decides its slot: between the first "{" and the next "}", unless that is empty. */
function hashTag(name: string): string | undefined {
  const open = name.indexOf('{');
  if (open < 0) return undefined;
  const close = name.indexOf('}', open + 1);
  return close > open + 1 ? name.slice(open + 1, close) : undefined;
}

/** The index by execution. Undefined unless both ids are known: small execution ids are the same on every instance. */
export function executionKey(owner: { instanceId?: string; executionId?: string }): string | undefined {
  if (!owner.instanceId || !owner.executionId) return undefined;
  return `rl:execution:${owner.instanceId}:${owner.executionId}`;
}

/** A companion or channel rather than a lock: listings skip it. */
export const isInternal = (name: string) => /(^|\}:)rl:/.test(name);

/** A new name at every start: a message meant for a dead process must not reach its successor. */
export const channelName = () => `rl:wake:${randomBytes(12).toString('hex')}`;

/** Random per acquire (122 bits); the only proof of holding a lock. */
export const newLockId = () => randomUUID();

import type Redis from 'ioredis';

/**
 * What the chaos tests see of a lock in Redis, in one round trip, and how they let time pass without waiting for it.
 * The layout is that of engine/keys.ts and engine/lua/shared/read.lua.
 */

const names = (key: string) => [key, `{${key}}:rl:lock`, `{${key}}:rl:line`, `{${key}}:rl:wait`] as const;

const SEE = `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local bare = {}
for _, name in ipairs(redis.call('KEYS', '*')) do
  if redis.call('PTTL', name) == -1 then bare[#bare + 1] = name end
end
local indexes = {}
for i = 5, #KEYS do indexes[#indexes + 1] = redis.call('HKEYS', KEYS[i]) end
return { now, redis.call('GET', KEYS[1]) or '', redis.call('PTTL', KEYS[1]), redis.call('HGETALL', KEYS[2]),
  redis.call('ZRANGE', KEYS[3], 0, -1), redis.call('HGETALL', KEYS[4]), bare, indexes }`;

// ARGV: id, ms by which its end of lease is moved back from now ('' = leave), ms by which it was heard of earlier,
// what becomes of K: 'leases' = it ends with the longest lease that is left, else it stays.
const PASS = `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local field = '@' .. ARGV[1]
local text = redis.call('HGET', KEYS[2], field)
if not text then return 0 end
local n = {}
for word in string.gmatch(text, '[^ ]+') do n[#n + 1] = word end
local int = function(x) return string.format('%.0f', x) end
if ARGV[2] ~= '' then n[1] = int(now - ARGV[2]) end
n[4], n[5] = int(n[4] - ARGV[3]), int(now - (ARGV[3] == '0' and now - n[5] or ARGV[3]))
redis.call('HSET', KEYS[2], field, table.concat(n, ' '))
if ARGV[4] == 'delete' then redis.call('DEL', KEYS[1]) end
if ARGV[4] == 'leases' then
  local longest = 0
  local flat = redis.call('HGETALL', KEYS[2])
  for i = 1, #flat, 2 do
    if string.sub(flat[i], 1, 1) == '@' then longest = math.max(longest, tonumber(string.match(flat[i + 1], '^%d+'))) end
  end
  redis.call('PEXPIREAT', KEYS[1], int(longest))
end
return 1`;

export interface Waits {
  channel: string;
  once: boolean;
  newest: boolean;
  settling: boolean;
  owner: string;
}

export interface Seen {
  value: string;
  /** When K ends by Redis' clock, -1 = never. */
  keyEnds: number;
  holders: Array<{ id: string; ends: number; living: boolean; token: number; ttl: number; limit: number; given: boolean; holds: string[] }>;
  fence?: number;
  floor: number;
  lost: Array<{ id: string; token: number; reason: string; by: number }>;
  silent: string[];
  marks: string[];
  line: string[];
  /** Who has told what it waits for, and on which channel it listens. */
  waits: Map<string, Waits>;
  done?: { over: boolean; token: number; owner: string; result: string };
  newest?: string;
  /** Keys without a TTL. */
  bare: string[];
  indexes: string[][];
}

export class Eyes {
  constructor(private readonly redis: Redis) {}

  async see(key: string, indexes: string[]): Promise<Seen> {
    const all = [...names(key), ...indexes];
    const reply = (await this.redis.eval(SEE, all.length, ...all)) as [number, string, number, string[], string[], string[], string[], string[][]];
    const [now, value, ttl, lock, line, waits, bare, inIndexes] = reply;
    const fields = pairs(lock);
    const named = (mark: string) => fields.filter(([field]) => field.startsWith(mark)).map(([field, text]) => [field.slice(1), text] as const);
    const field = (name: string) => fields.find(([known]) => known === name)?.[1];
    return {
      value,
      keyEnds: ttl < 0 ? ttl : now + ttl,
      holders: named('@').map(([id, text]) => {
        const [ends, token, ttlMs, , , , limit, ticket, holds] = text.split(' ');
        const living = Number(ends) > now;
        return {
          id, ends: Number(ends), living, token: Number(token), ttl: Number(ttlMs), limit: Number(limit), given: ticket !== '0',
          holds: holds === '-' ? [] : String(holds).split(','),
        };
      }),
      ...(field('fence') && { fence: Number(field('fence')) }),
      floor: Number(field('floor') ?? 0),
      lost: (field('lost') ?? '').split('\n').filter(Boolean).map((text) => {
        const [id, token, reason, , by] = text.split(' ');
        return { id: String(id), token: Number(token), reason: String(reason), by: Number(by) };
      }),
      silent: named('~').map(([channel]) => channel),
      marks: named('!').map(([mark]) => mark),
      line,
      waits: new Map(pairs(waits).map(([id, text]) => [id, waiter(text, now)])),
      ...(field('done') !== undefined && { done: doneMark(field('done')!, now) }),
      ...(field('newest') !== undefined && { newest: field('newest')! }),
      bare,
      indexes: inIndexes,
    };
  }

  /** The lease of `id` ran out, `agoMs` ago. */
  expire(key: string, id: string, agoMs: number, keyBecomes: 'leases' | 'delete' | 'stays'): Promise<unknown> {
    return this.redis.eval(PASS, 4, ...names(key), id, agoMs, 0, keyBecomes);
  }

  /** `id` was granted, and last heard of, `ms` earlier than it was. */
  age(key: string, id: string, ms: number): Promise<unknown> {
    return this.redis.eval(PASS, 4, ...names(key), id, '', ms, 'stays');
  }

  /** The time is over for which it is remembered that it was done. */
  async forget(key: string): Promise<void> {
    const [, lock] = names(key);
    const text = String(await this.redis.hget(lock, 'done'));
    await this.redis.hset(lock, 'done', text.replace(/^\d+/, '1'));
  }

  /** Nothing newer has come for as long as a waiter waits for that. */
  async settle(key: string, id: string): Promise<void> {
    const [, , , waits] = names(key);
    const text = String(await this.redis.hget(waits, id));
    await this.redis.hset(waits, id, text.replace(/n\d+:/, 'n1:'));
  }

  /** The time of a waiter is over, and its process has not said so. */
  async outdate(key: string, id: string): Promise<void> {
    const [, , , waits] = names(key);
    const text = String(await this.redis.hget(waits, id)).split(' ');
    text[1] = '1';
    await this.redis.hset(waits, id, text.join(' '));
  }
}

function waiter(text: string, now: number): Waits {
  const [, channel, policy, owner] = /^(\S+) \d+ \d+ \d+(\S*) \d+ \S+ (.*)$/.exec(text) ?? [];
  return { channel: String(channel), once: String(policy).startsWith('o'), newest: String(policy).includes('n'), settling: Number(/n(\d+)/.exec(String(policy))?.[1]) > now, owner: String(owner) };
}

function doneMark(text: string, now: number): Seen['done'] {
  const [, till, token, owner, result] = /^(\d+) \d+ (\d+) (.*)\n(.*)$/.exec(text) ?? [];
  return { over: Number(till) <= now, token: Number(token), owner: String(owner), result: String(result) };
}

const pairs = (flat: string[]) => Array.from({ length: flat.length / 2 }, (_, i) => [String(flat[2 * i]), String(flat[2 * i + 1])] as const);

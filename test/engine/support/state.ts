import type Redis from 'ioredis';
import { until } from './until';

/** The one place in the tests that knows how the engine stores its state. */

const companion = (key: string) => `{${key}}:rl:lock`;

export const line = (key: string) => `{${key}}:rl:line`;

/** Resolves when so many wait in line, and their processes listen. */
export const inLine = (redis: Redis, key: string, length: number) =>
  until(async () => {
    const [count, waiters] = await Promise.all([redis.zcard(line(key)), redis.hvals(`{${key}}:rl:wait`)]);
    return count === length && waiters.every((waiter) => !waiter.startsWith('poll:'));
  });

/** Puts a fencing token of the future into the state, as a server clock that was set back would leave it. */
export async function setFence(redis: Redis, key: string, fence: number): Promise<void> {
  await redis.hset(companion(key), 'fence', fence);
}

/** Makes a lease look as if it had been granted, and last heard of, `ms` earlier. */
export async function age(redis: Redis, key: string, lockId: string, ms: number): Promise<void> {
  const record = String(await redis.hget(companion(key), `@${lockId}`)).split(' ');
  record[3] = String(Number(record[3]) - ms);
  record[4] = String(Number(record[4]) - ms);
  await redis.hset(companion(key), `@${lockId}`, record.join(' '));
}

/** Ends a lease early: its record runs out in `inMs`, as does K unless `keepKey`. */
export async function expire(redis: Redis, key: string, lockId: string, { inMs = 0, keepKey = false } = {}): Promise<void> {
  const [seconds, micros] = (await redis.time()).map(Number) as [number, number];
  const record = String(await redis.hget(companion(key), `@${lockId}`)).split(' ');
  const ends = seconds * 1000 + Math.floor(micros / 1000) + inMs;
  record[0] = String(ends);
  const change = redis.multi().hset(companion(key), `@${lockId}`, record.join(' '));
  if (!keepKey) change.pexpireat(key, ends);
  await change.exec();
}

/** What is under a key and its companions, to see that nothing changed. */
export async function dump(redis: Redis, key: string): Promise<Record<string, unknown>> {
  const names = [key, companion(key), line(key), `{${key}}:rl:wait`];
  const values = await Promise.all(names.map((name) => redis.dumpBuffer(name)));
  return Object.fromEntries(names.map((name, i) => [name, values[i]?.toString('hex') ?? null]));
}

import type { Redis } from 'ioredis';
import { until } from '../../../scripts/lib/wait';

/** What stands in Redis beside a lock key. */
export const lineKey = (key: string) => `{${key}}:rl:line`;

/** How many executions wait for the key. */
export const lineLength = async (redis: Redis, key: string) => await redis.zcard(lineKey(key));

/** Resolves when so many executions wait for the key. */
export async function untilWaiting(redis: Redis, key: string, count = 1) {
  await until(`${count} in line for ${key}`, async () => (await lineLength(redis, key)) === count, { everyMs: 5 });
}

/** Resolves when nobody holds the key. */
export async function untilFree(redis: Redis, key: string) {
  await until(`${key} to be free`, async () => (await redis.exists(key)) === 0, { everyMs: 5 });
}

/** The fencing token that Redis shows under a held key, else null. */
export async function heldToken(redis: Redis, key: string): Promise<number | null> {
  const value = await redis.get(key);
  if (value !== null && !/^\d{16}$/.test(value)) throw new Error(`${key} holds "${value}", not a fencing token`);
  return value === null ? null : Number(value);
}

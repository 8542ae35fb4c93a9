import type Redis from 'ioredis';

/** The commands that n8n's own Redis node sends, from which people build locks by hand. */
export const chain = (redis: Redis) => ({
  /** Operation "Increment" with a TTL: INCR, and then EXPIRE on every call, the loser's too. */
  async increment(key: string, ttlSeconds: number): Promise<number> {
    const value = await redis.incr(key);
    await redis.expire(key, ttlSeconds);
    return value;
  },
  incrementForEver: (key: string) => redis.incr(key),
  set: (key: string, value: string) => redis.set(key, value),
  get: (key: string) => redis.get(key),
  del: (key: string) => redis.del(key),
});

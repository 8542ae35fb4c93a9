import { createClient } from 'redis';
import mutex from 'simple-redis-mutex';

/** On node-redis 5. Wakes every waiter on each release (pub/sub), polls every 10 s besides. */
export default {
  name: 'simple-redis-mutex',
  async create(redisUrl) {
    const redis = await createClient({ url: redisUrl })
      .on('error', () => {})
      .connect();
    return {
      async acquire(key, ttlMs, waitMs) {
        if (waitMs === 0) {
          const [held, release] = await mutex.tryLock(redis, key, { timeout: ttlMs });
          return held ? release : null;
        }
        try {
          return await mutex.lock(redis, key, { timeout: ttlMs, failAfter: waitMs });
        } catch (error) {
          if (/could not be acquired/.test(error.message)) return null;
          throw error;
        }
      },
      release: (release) => release(),
      extend: (release) => release.refreshTimeout(),
      close: () => redis.close(),
    };
  },
};

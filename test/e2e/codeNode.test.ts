// The engine in a Code node, where n8n lets it in and finds it.

import Redis from 'ioredis';
import { Flow } from './support/flow';
import { goLive, redisCredential, setup, sharedN8n, unique } from './support/n8n';

const n8n = sharedN8n();
const redis = new Redis({ ...setup.redis, lazyConnect: true });

beforeAll(() => redis.connect());
afterAll(() => redis.disconnect());

test('a Code node takes a lock, excludes another one, and gives it back', async () => {
  const key = unique('code:lock');
  const path = unique('code');
  const flow = new Flow(unique('From code'), await redisCredential(n8n));
  flow.chain(
    flow.answeringWebhook(path),
    flow.code(
      'Code',
      `
      const { createLocks } = require('n8n-nodes-redis-lock');
      const locks = createLocks({ url: 'redis://${setup.redis.host}:${setup.redis.port}' });
      const first = await locks.acquire('${key}', { ttlMs: 60000 });
      const second = await locks.acquire('${key}', { ttlMs: 60000, waitMs: 100 });
      const released = await first.lock.release();
      const third = await locks.acquire('${key}', { ttlMs: 60000 });
      await third.lock.release();
      await locks.close();
      return [{ json: { first: first.outcome, second: second.outcome, released: released.outcome, third: third.outcome } }];
      `,
    ),
  );
  const live = await goLive(n8n, flow);

  const answer = await live.call(path, {});

  expect(answer.body).toEqual([{ first: 'acquired', second: 'timedOut', released: 'released', third: 'acquired' }]);
  expect(await redis.exists(key)).toBe(0);
});

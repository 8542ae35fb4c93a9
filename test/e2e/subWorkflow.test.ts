// The lock as a sub-workflow that others call: taken in one execution, given back by another.

import Redis from 'ioredis';
import { Flow, OUTPUT } from './support/flow';
import { Gate } from './support/gate';
import { goLive, makeCallable, redisCredential, setup, sharedN8n, unique } from './support/n8n';

const n8n = sharedN8n();
const gate = new Gate();
const redis = new Redis({ ...setup.redis, lazyConnect: true });

beforeAll(async () => {
  await gate.open();
  await redis.connect();
});
afterAll(async () => {
  await gate.close();
  redis.disconnect();
});

test('a lock taken in a sub-workflow outlives it, and its caller gives it back by lock id', async () => {
  const path = unique('parent');
  const key = unique('crm:lock:contact');
  const credential = await redisCredential(n8n);
  const child = new Flow(unique('Take Lock'), credential);
  child.chain(child.calledByOthers(), child.lock('Acquire', { operation: 'acquire', key, ttl: 60, options: { owner: 'caller' } }));
  const { id: taking } = await makeCallable(n8n, child);

  const flow = new Flow(unique('Caller'), credential);
  const lockId = "={{ $('Take').first().json.lock.lockId }}";
  flow.chain(
    flow.webhook(path),
    flow.subWorkflow('Take', taking),
    flow.visit('Section', `${gate.url}/${key}`),
    flow.lock('Release', { operation: 'release', target: 'lockId', key, lockId }),
  );
  const live = await goLive(n8n, flow);
  await live.call(path);
  const visit = await gate.next();
  const ended = await n8n.executions(taking);
  const heldBy = await redis.get(key);
  visit.leave();

  const [run] = await live.finished(1);
  // The child's execution had ended while the lock was still there.
  expect(ended.map((one) => one.status)).toEqual(['success']);
  expect(heldBy).toMatch(/^\d{16}$/);
  expect(run.lock('Take')).toMatchObject({ acquired: true, key, fencingToken: Number(heldBy) });
  expect(run.items('Release', OUTPUT.notHeld)).toEqual([]);
  expect(run.lock('Release')).toMatchObject({ released: true, key });
  expect(await redis.exists(key)).toBe(0);
});

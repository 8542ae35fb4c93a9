// n8n is killed in the middle of a critical section: the lock stays until its TTL ends, and not a moment longer.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import Redis from 'ioredis';
import { signIn } from '../../scripts/lib/n8n-api';
import { startN8n } from '../../scripts/lib/n8n-server';
import type { N8nServer } from '../../scripts/lib/n8n-server';
import { installForN8n } from '../../scripts/lib/package';
import { until } from '../../scripts/lib/wait';
import { Flow, OUTPUT } from './support/flow';
import { Gate } from './support/gate';
import { goLive, redisCredential, LiveFlow, setup, unique } from './support/n8n';

const gate = new Gate();
const redis = new Redis({ ...setup.redis, lazyConnect: true });
let folder: string;
let server: N8nServer | undefined;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'redis-lock-crash-'));
  await gate.open();
  await redis.connect();
  await installForN8n(folder, setup.tarball, setup.install.nodeHome);
});
afterAll(async () => {
  await server?.stop();
  await gate.close();
  redis.disconnect();
  rmSync(folder, { recursive: true, force: true });
});

test('killed by SIGKILL while it holds the lock: Busy before the TTL ends, a winner after it', async () => {
  // Long enough for n8n to start again before it ends, also on a slow machine.
  const ttl = 60;
  const path = unique('crash');
  const key = unique('w4ingest:lock:folder');

  server = await startN8n({ install: setup.install, userFolder: folder });
  const before = await signIn(server.url);
  const flow = new Flow(unique('Crash'), await redisCredential(before));
  flow.chain(
    flow.webhook(path),
    flow.lock('Acquire', { operation: 'acquire', key, ttl }),
    flow.visit('Section', `=${gate.url}/${key}?token={{ $json.lock.fencingToken }}`),
    flow.lock('Release', { operation: 'release' }),
  );
  flow.link('Acquire', OUTPUT.busy, flow.noOp('Loser'));
  const { id } = await goLive(before, flow);
  const live = new LiveFlow(before, id);
  await live.call(path);
  const killed = await gate.next();
  const [killedId] = await live.runningIds();
  const heldBy = await redis.get(key);
  await server.kill();
  await until('the section to be left', () => gate.insideNow() === 0);

  server = await startN8n({ install: setup.install, userFolder: folder });
  const after = await signIn(server.url);
  await after.waitForWebhook(path, 'POST');
  const again = new LiveFlow(after, id);

  // The dead holder's time is not up: a loser, that does not prolong it.
  const leftBefore = await redis.pttl(key);
  expect(leftBefore).toBeGreaterThan(0);
  await again.call(path);
  await again.ended(2);
  expect(await redis.get(key)).toBe(heldBy);
  expect(await redis.pttl(key)).toBeLessThan(leftBefore);

  // Its time is up: the next run wins, with a larger fencing token.
  await until('the lock to expire', async () => (await redis.exists(key)) === 0, { timeoutMs: (ttl + 5) * 1000 });
  await again.call(path);
  const next = await gate.next();
  next.leave();

  const [crashed, loser, winner] = await again.finished(3);
  expect(crashed.id).toBe(killedId);
  expect(crashed.status).toBe('crashed');
  expect(loser.lock('Acquire', OUTPUT.busy)).toMatchObject({ acquired: false, key, holder: { executionId: killedId } });
  expect(loser.items('Loser')).toHaveLength(1);
  expect(loser.tookMs).toBeLessThan(2000);
  expect(winner.lock('Release')).toMatchObject({ released: true, key });
  expect(Number(next.says.token)).toBeGreaterThan(Number(killed.says.token));
  expect(gate.mostInside(key)).toBe(1);
});

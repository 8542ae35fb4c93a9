import { setTimeout as delay } from 'node:timers/promises';
import { useBed } from './harness/bed';
import { engineVersions } from './harness/engine';
import { untilFree, untilWaiting } from './harness/look';
import { acquire, getStatus, workflow, type Json } from './harness/workflow';

describe.each(engineVersions)('Get Status on n8n-core %s', (version) => {
  const bed = useBed(version);

  async function statusOf(key: string): Promise<Json> {
    const result = await bed.engine.run(workflow([getStatus('Status', { key })], 'Start -> Status'));
    expect(result.counts('Status')).toEqual([1]);
    return result.locks('Status', 'Status')[0];
  }

  const take = async (key: string, parameters: Json = {}) =>
    await bed.engine.run(workflow([acquire('Acquire', { key, ...parameters })], 'Start -> Acquire'));

  it('free', async () => {
    const key = bed.key();
    const status = await statusOf(key);

    expect(status).toMatchObject({ key, state: 'free', queueLength: 0 });
    expect(status.holder ?? null).toBeNull();
    expect(await bed.redis.keys(`*${key}*`)).toEqual([]);
  });

  it('held, by whom', async () => {
    const key = bed.key();
    const holder = await take(key, { ttl: 120, options: { note: 'import' } });
    const [lock] = holder.locks('Acquire', 'Acquired');
    const status = await statusOf(key);

    expect(status).toMatchObject({
      key,
      state: 'held',
      queueLength: 0,
      holder: {
        executionId: holder.executionId,
        workflowId: 'wf-1',
        workflowName: 'Test workflow',
        nodeName: 'Acquire',
        fencingToken: lock.fencingToken,
        note: 'import',
      },
    });
    const { expiresInSeconds } = status.holder as Json;
    expect(expiresInSeconds).toBeGreaterThan(100);
    expect(expiresInSeconds).toBeLessThanOrEqual(120);
    expect(JSON.stringify(status)).not.toContain(lock.lockId);
  });

  it('held, with a line', async () => {
    const key = bed.key();
    await take(key);
    const waiters = [1, 2].map(() =>
      bed.engine.start(workflow([acquire('Acquire', { key, whenBusy: 'wait' })], 'Start -> Acquire')),
    );
    await untilWaiting(bed.redis, key, 2);

    expect(await statusOf(key)).toMatchObject({ state: 'held', queueLength: 2 });
    for (const waiter of waiters) waiter.cancel();
    await Promise.all(waiters.map(async (waiter) => await waiter.finished));
  });

  it('free again after the lease ran out', async () => {
    const key = bed.key();
    await take(key, { ttl: 1 });
    await untilFree(bed.redis, key);

    expect((await statusOf(key)).state).toBe('free');
  });

  it("foreign: a stranger's key that will expire", async () => {
    const key = bed.key();
    await bed.redis.set(key, '1', 'EX', 60);

    expect(await statusOf(key)).toMatchObject({ state: 'foreign', key });
    expect(await bed.redis.get(key)).toBe('1');
  });

  it("noTtl: a stranger's key that never expires", async () => {
    const key = bed.key();
    await bed.redis.set(key, 'hello');

    expect(await statusOf(key)).toMatchObject({ state: 'noTtl', key });
  });

  it('does not change what it looks at', async () => {
    const key = bed.key();
    await take(key, { ttl: 60 });
    await delay(20); // so that a renewed TTL would show
    const before = await bed.redis.pexpiretime(key);
    await statusOf(key);

    expect(await bed.redis.pexpiretime(key)).toBe(before);
  });

  it('passes its items through, each with the state of its own key', async () => {
    const [held, free] = [bed.key(), bed.key()];
    await take(held);
    const result = await bed.engine.run(
      workflow([getStatus('Status', { key: '={{ $json.key }}' })], 'Start -> Status'),
      {
        items: [held, free].map((key, n) => ({ json: { key, n } })),
      },
    );

    expect(result.items('Status', 'Status')).toMatchObject([
      { json: { key: held, n: 0, lock: { state: 'held' } }, pairedItem: { item: 0 } },
      { json: { key: free, n: 1, lock: { state: 'free' } }, pairedItem: { item: 1 } },
    ]);
  });
});

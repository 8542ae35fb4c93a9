import { useBed } from './harness/bed';
import { engineVersions } from './harness/engine';
import { acquire, heartbeat, release, workflow } from './harness/workflow';

describe.each(engineVersions)('items on n8n-core %s', (version) => {
  const bed = useBed(version);
  const key = '={{ $json.key }}';

  /** Items that somebody else holds the lock for. */
  async function takeElsewhere(...keys: string[]) {
    const items = keys.map((each) => ({ json: { key: each } }));
    return await bed.engine.run(workflow([acquire('Other', { key })], 'Start -> Other'), { items });
  }

  it('pass through unchanged, with their binary data and their pairing', async () => {
    const binary = { file: { data: 'aGVsbG8=', mimeType: 'text/plain', fileName: 'hello.txt' } };
    const items = [
      { json: { key: bed.key(), nested: { list: [1, { deep: null }] }, message: 'mine' }, binary },
      { json: { key: bed.key() } },
    ];
    const flow = workflow(
      [acquire('Acquire', { key }), heartbeat('Heartbeat', {}), release('Release', {})],
      'Start -> Acquire -> Heartbeat -> Release',
    );
    const result = await bed.engine.run(flow, { items });

    for (const [node, output] of [
      ['Acquire', 'Acquired'],
      ['Heartbeat', 'Alive'],
      ['Release', 'Released'],
    ]) {
      const got = result.items(node, output);
      expect(got.map(({ json }) => ({ ...json, lock: undefined }))).toEqual(items.map(({ json }) => json));
      expect(got.map((item) => item.binary)).toEqual([binary, undefined]);
      expect(got.map((item) => item.pairedItem)).toEqual([{ item: 0 }, { item: 1 }]);
    }
  });

  it('tell about the lock under one field', async () => {
    const own = bed.key();
    const result = await bed.engine.run(workflow([acquire('Acquire', { key: own, ttl: 60 })], 'Start -> Acquire'));
    const [lock] = result.locks('Acquire', 'Acquired');

    expect(lock).toMatchObject({
      acquired: true,
      key: own,
      lockId: expect.stringMatching(/\S{16,}/),
      fencingToken: expect.any(Number),
      ttlSeconds: 60,
      waitedMs: 0,
      acquiredBy: 'Acquire',
    });
    const leftMs = new Date(lock.expiresAt as string).getTime() - Date.now();
    expect(leftMs).toBeGreaterThan(55_000);
    expect(leftMs).toBeLessThanOrEqual(60_500);
  });

  it('tell a loser who is in the way, but never the lock id of the holder', async () => {
    const own = bed.key();
    const winner = await bed.engine.run(
      workflow([acquire('Winner', { key: own, options: { note: 'nightly' } })], 'Start -> Winner'),
    );
    const loser = await bed.engine.run(workflow([acquire('Loser', { key: own })], 'Start -> Loser'));

    const [won] = winner.locks('Winner', 'Acquired');
    const [lost] = loser.locks('Loser', 'Busy');
    expect(lost).toMatchObject({
      acquired: false,
      key: own,
      queueLength: 0,
      reason: expect.any(String),
      holder: {
        executionId: winner.executionId,
        executionUrl: expect.stringContaining(winner.executionId),
        workflowId: 'wf-1',
        workflowName: 'Test workflow',
        nodeName: 'Winner',
        host: expect.any(String),
        acquiredAt: expect.any(String),
        lastHeartbeatAt: expect.any(String),
        expiresInSeconds: expect.any(Number),
        fencingToken: won.fencingToken,
        note: 'nightly',
      },
    });
    expect(JSON.stringify(lost)).not.toContain(won.lockId);
  });

  it('leave through the output of their own key', async () => {
    const keys = [bed.key(), bed.key(), bed.key(), bed.key()];
    await takeElsewhere(keys[1], keys[3]);
    const result = await bed.engine.run(workflow([acquire('Acquire', { key })], 'Start -> Acquire'), {
      items: keys.map((each, n) => ({ json: { key: each, n } })),
    });

    const seen = (output: string) =>
      result.items('Acquire', output).map(({ json, pairedItem }) => [json.n, pairedItem]);
    expect(seen('Acquired')).toEqual([
      [0, { item: 0 }],
      [2, { item: 2 }],
    ]);
    expect(seen('Busy')).toEqual([
      [1, { item: 1 }],
      [3, { item: 3 }],
    ]);
    expect(result.counts('Acquire')).toEqual([2, 2, 0]);
  });

  it('with equal keys share one lock', async () => {
    const own = bed.key();
    const result = await bed.engine.run(
      workflow([acquire('Acquire', { key: own }), release('Release', {})], 'Start -> Acquire -> Release'),
      { items: [{ json: {} }, { json: {} }, { json: {} }] },
    );

    const locks = result.locks('Acquire', 'Acquired');
    expect(locks).toHaveLength(3);
    expect(new Set(locks.map(({ lockId }) => lockId)).size).toBe(1);
    expect(new Set(locks.map(({ fencingToken }) => fencingToken)).size).toBe(1);
    expect(result.counts('Release')).toEqual([3, 0]);
    expect(await bed.redis.exists(own)).toBe(0);
  });

  it('are locked in byte order of their keys, whatever their own order', async () => {
    const prefix = bed.key();
    // In UTF-16 the emoji would come before the full-width tilde, in bytes it comes after.
    const names = ['😀', 'b', '～', 'B', 'a', 'é'];
    const result = await bed.engine.run(workflow([acquire('Acquire', { key })], 'Start -> Acquire'), {
      items: names.map((name) => ({ json: { key: prefix + name, name } })),
    });

    const taken = result
      .items('Acquire', 'Acquired')
      .sort((a, b) => Number(a.json.lock!.fencingToken) - Number(b.json.lock!.fencingToken));
    expect(taken.map(({ json }) => json.name)).toEqual(['B', 'a', 'b', 'é', '～', '😀']);
  });

  it('with equal keys and different TTLs are refused before anything is locked', async () => {
    const own = bed.key();
    const result = await bed.engine.run(
      workflow([acquire('Acquire', { key: own, ttl: '={{ $json.ttl }}' })], 'Start -> Acquire'),
      { items: [{ json: { ttl: 60 } }, { json: { ttl: 90 } }] },
    );

    expect(result.status).toBe('error');
    expect(result.errorText).toMatch(/TTL/);
    expect(result.errorText).toContain(own);
    expect(await bed.redis.exists(own)).toBe(0);
  });

  it('keep a lock that they carried already under "outer"', async () => {
    const [outer, inner] = [bed.key('outer'), bed.key('inner')];
    const result = await bed.engine.run(
      workflow([acquire('Outer', { key: outer }), acquire('Inner', { key: inner })], 'Start -> Outer -> Inner'),
    );

    const [lock] = result.locks('Inner', 'Acquired');
    expect(lock).toMatchObject({ key: inner, acquiredBy: 'Inner', outer: { key: outer, acquiredBy: 'Outer' } });
  });

  it("carry the lock in a field of the user's choice", async () => {
    const own = bed.key();
    const options = { outputField: 'mutex' };
    const result = await bed.engine.run(
      workflow(
        [acquire('Acquire', { key: own, options }), release('Release', { options })],
        'Start -> Acquire -> Release',
      ),
    );

    expect(result.items('Acquire', 'Acquired')[0].json).toEqual({
      mutex: expect.objectContaining({ acquired: true, key: own }),
    });
    expect(result.items('Release', 'Released')[0].json).toEqual({
      mutex: expect.objectContaining({ released: true, key: own }),
    });
  });
});

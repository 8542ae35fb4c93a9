import { useBed } from './harness/bed';
import { engineVersions } from './harness/engine';
import { heldToken, untilFree } from './harness/look';
import { acquire, heartbeat, hold, loop, release, replace, workflow } from './harness/workflow';

/** How Heartbeat and Release find the lock that is meant, with nothing wired and nothing configured. */
describe.each(engineVersions)('targets on n8n-core %s', (version) => {
  const bed = useBed(version);

  it('are found when every node between has replaced the JSON', async () => {
    const key = bed.key();
    const result = await bed.engine.run(
      workflow(
        [
          acquire('Acquire', { key }),
          replace('HTTP Request', { status: 200 }),
          heartbeat('Heartbeat', {}),
          replace('Database', { rows: 3 }),
          release('Release', {}),
        ],
        'Start -> Acquire -> HTTP Request -> Heartbeat -> Database -> Release',
      ),
    );

    expect(result.items('Heartbeat', 'Alive')).toMatchObject([{ json: { status: 200, lock: { alive: true, key } } }]);
    expect(result.items('Release', 'Released')).toMatchObject([{ json: { rows: 3, lock: { released: true, key } } }]);
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('a heartbeat renews the lease', async () => {
    const key = bed.key();
    const run = bed.engine.start(
      workflow(
        [acquire('Acquire', { key, ttl: 60 }), hold('Hold'), heartbeat('Heartbeat', {})],
        'Start -> Acquire -> Hold -> Heartbeat',
      ),
    );
    await run.reached('Hold', 'holding');
    await bed.redis.pexpire(key, 5000);
    await run.letGo('Hold');
    await run.finished;

    expect(await bed.redis.pttl(key)).toBeGreaterThan(55_000);
  });

  it('nested sections close in order', async () => {
    const [outer, inner] = [bed.key('folder'), bed.key('record')];
    const run = bed.engine.start(
      workflow(
        [
          acquire('Outer', { key: outer }),
          acquire('Inner', { key: inner }),
          release('First', {}),
          hold('Hold'),
          release('Second', {}),
        ],
        'Start -> Outer -> Inner -> First -> Hold -> Second',
      ),
    );
    await run.reached('Hold', 'holding');
    expect(await bed.redis.exists(inner)).toBe(0);
    expect(await bed.redis.exists(outer)).toBe(1);

    await run.letGo('Hold');
    const result = await run.finished;
    expect(result.locks('First', 'Released')).toMatchObject([{ released: true, key: inner }]);
    expect(result.locks('Second', 'Released')).toMatchObject([{ released: true, key: outer }]);
    expect(await bed.redis.exists(outer)).toBe(0);
  });

  it('an inner lock per record in a loop, an outer lock around it', async () => {
    const [outer, inner] = [bed.key('folder'), bed.key('record')];
    const result = await bed.engine.run(
      workflow(
        [
          acquire('Lock folder', { key: outer }),
          loop('Loop'),
          acquire('Lock record', { key: `=${inner}-{{ $json.n }}` }),
          release('Free record', {}),
          release('Free folder', {}),
        ],
        'Start -> Lock folder -> Loop:Loop -> Lock record -> Work -> Free record -> Loop',
        'Loop:Done -> Free folder',
      ),
      { items: [{ json: { n: 1 } }, { json: { n: 2 } }, { json: { n: 3 } }] },
    );

    expect(result.status).toBe('success');
    expect(result.locks('Free record', 'Released').map(({ key }) => key)).toEqual(
      [1, 2, 3].map((n) => `${inner}-${n}`),
    );
    expect(result.locks('Free folder', 'Released').map(({ key }) => key)).toEqual([outer, outer, outer]);
    expect(await bed.redis.keys(`${outer}*`)).toEqual([]);
    expect(await bed.redis.keys(`${inner}*`)).toEqual([]);
  });

  describe('with several Acquire nodes holding and nothing on the item', () => {
    const nodes = (keys: string[]) => [
      acquire('Lock folder', { key: keys[0] }),
      acquire('Lock record', { key: keys[1] }),
      replace('HTTP Request', {}),
    ];
    const wires = 'Start -> Lock folder -> Lock record -> HTTP Request';

    it('Release asks which one', async () => {
      const keys = [bed.key(), bed.key()];
      const result = await bed.engine.run(workflow([...nodes(keys), release('Release', {})], `${wires} -> Release`));

      expect(result.status).toBe('error');
      expect(result.errorText).toContain('Lock folder');
      expect(result.errorText).toContain('Lock record');
      expect(await bed.redis.exists(...keys)).toBe(2);
    });

    it('Release frees those of one Acquire node', async () => {
      const keys = [bed.key(), bed.key()];
      const result = await bed.engine.run(
        workflow(
          [...nodes(keys), release('Release', { target: 'node', acquiredBy: 'Lock record' })],
          `${wires} -> Release`,
        ),
      );

      expect(result.locks('Release', 'Released')).toMatchObject([{ released: true, key: keys[1] }]);
      expect(await bed.redis.exists(keys[0])).toBe(1);
      expect(await bed.redis.exists(keys[1])).toBe(0);
    });

    it('Release frees everything that the execution holds', async () => {
      const keys = [bed.key(), bed.key()];
      const result = await bed.engine.run(
        workflow([...nodes(keys), release('Release', { target: 'execution' })], `${wires} -> Release`),
      );

      expect(result.counts('Release')).toEqual([1, 0]);
      expect(await bed.redis.exists(...keys)).toBe(0);
    });

    it('Heartbeat renews all of them', async () => {
      const keys = [bed.key(), bed.key()];
      const run = bed.engine.start(
        workflow([...nodes(keys), hold('Hold'), heartbeat('Heartbeat', {})], `${wires} -> Hold -> Heartbeat`),
      );
      await run.reached('Hold', 'holding');
      for (const key of keys) await bed.redis.pexpire(key, 5000);
      await run.letGo('Hold');
      const result = await run.finished;

      expect(result.counts('Heartbeat')).toEqual([1, 0]);
      for (const key of keys) expect(await bed.redis.pttl(key)).toBeGreaterThan(500_000);
    });

    it('Heartbeat renews the lock of one key, for as long as asked', async () => {
      const keys = [bed.key(), bed.key()];
      const result = await bed.engine.run(
        workflow(
          [...nodes(keys), heartbeat('Heartbeat', { target: 'key', key: keys[1], ttl: 1200 })],
          `${wires} -> Heartbeat`,
        ),
      );

      expect(result.locks('Heartbeat', 'Alive')).toMatchObject([{ alive: true, key: keys[1], ttlSeconds: 1200 }]);
      expect(await bed.redis.pttl(keys[0])).toBeLessThanOrEqual(600_000);
      expect(await bed.redis.pttl(keys[1])).toBeGreaterThan(1_100_000);
    });
  });

  it('a lock id is enough, from an execution that took nothing', async () => {
    const key = bed.key();
    const holder = await bed.engine.run(workflow([acquire('Acquire', { key })], 'Start -> Acquire'));
    const { lockId } = holder.locks('Acquire', 'Acquired')[0];
    const result = await bed.engine.run(
      workflow(
        [
          heartbeat('Heartbeat', { target: 'lockId', lockId: '={{ $json.id }}', key }),
          release('Release', { target: 'lockId', lockId: '={{ $json.id }}', key }),
        ],
        'Start -> Heartbeat -> Release',
      ),
      { items: [{ json: { id: lockId } }] },
    );

    expect(result.counts('Heartbeat')).toEqual([1, 0]);
    expect(result.counts('Release')).toEqual([1, 0]);
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('the key of somebody else is out of reach', async () => {
    const key = bed.key();
    await bed.engine.run(workflow([acquire('Acquire', { key })], 'Start -> Acquire'));
    const before = await heldToken(bed.redis, key);
    const result = await bed.engine.run(
      workflow(
        [heartbeat('Heartbeat', { target: 'key', key }), release('Release', { target: 'key', key })],
        'Start -> Heartbeat:Lost -> Release',
      ),
    );

    expect(result.counts('Heartbeat')).toEqual([0, 1]);
    expect(result.counts('Release')).toEqual([0, 1]);
    expect(await heldToken(bed.redis, key)).toBe(before);
  });

  it('a loser renews and releases nothing', async () => {
    const key = bed.key();
    const winner = await bed.engine.run(workflow([acquire('Winner', { key })], 'Start -> Winner'));
    const result = await bed.engine.run(
      workflow(
        [acquire('Loser', { key }), heartbeat('Heartbeat', {}), release('Release', {})],
        'Start -> Loser:Busy -> Heartbeat:Lost -> Release',
      ),
    );

    expect(result.counts('Heartbeat')).toEqual([0, 1]);
    expect(result.counts('Release')).toEqual([0, 1]);
    expect(await heldToken(bed.redis, key)).toBe(winner.locks('Winner', 'Acquired')[0].fencingToken);
  });

  it('an execution that gathers more than 100 locks of one node is told to release inside its loop', async () => {
    const prefix = bed.key();
    const result = await bed.engine.run(
      workflow([acquire('Acquire', { key: `=${prefix}:{{ $json.n }}` })], 'Start -> Acquire'),
      {
        items: Array.from({ length: 101 }, (_, n) => ({ json: { n } })),
      },
    );

    expect(result.counts('Acquire')).toEqual([101, 0, 0]);
    expect(
      result
        .runs('Acquire')[0]
        .hints.map(({ message }) => message)
        .join(),
    ).toMatch(/release/i);
  });

  it('releasing again says so', async () => {
    const key = bed.key();
    const result = await bed.engine.run(
      workflow(
        [acquire('Acquire', { key }), release('Once', {}), release('Twice', {})],
        'Start -> Acquire -> Once -> Twice',
      ),
    );

    expect(result.locks('Once', 'Released')).toMatchObject([{ released: true, key }]);
    expect(result.locks('Twice', 'Released')).toMatchObject([{ alreadyReleased: true, key }]);
  });

  it('releasing a lock ID again says so', async () => {
    const key = bed.key();
    const lockId = '={{ $json.lock.lockId }}';
    const result = await bed.engine.run(
      workflow(
        [
          acquire('Acquire', { key }),
          release('Once', { target: 'lockId', lockId, key }),
          release('Twice', { target: 'lockId', lockId, key }),
        ],
        'Start -> Acquire -> Once -> Twice',
      ),
    );

    expect(result.locks('Twice', 'Released')).toMatchObject([{ alreadyReleased: true, key }]);
  });

  it('releasing after the lease ran out, with nobody in between, says so', async () => {
    const key = bed.key();
    const run = bed.engine.start(
      workflow(
        [acquire('Acquire', { key, ttl: 1, options: { keepAlive: false } }), hold('Hold'), release('Release', {})],
        'Start -> Acquire -> Hold -> Release',
      ),
    );
    await run.reached('Hold', 'holding');
    await untilFree(bed.redis, key);
    await run.letGo('Hold');

    expect((await run.finished).locks('Release', 'Released')).toMatchObject([
      { released: true, expiredBefore: true, key },
    ]);
  });

  it('a heartbeat after the lease ran out, with nobody in between, revives it', async () => {
    const key = bed.key();
    const run = bed.engine.start(
      workflow(
        [acquire('Acquire', { key, ttl: 1, options: { keepAlive: false } }), hold('Hold'), heartbeat('Heartbeat', { ttl: 60 })],
        'Start -> Acquire -> Hold -> Heartbeat',
      ),
    );
    await run.reached('Hold', 'holding');
    await untilFree(bed.redis, key);
    await run.letGo('Hold');
    const result = await run.finished;

    expect(result.locks('Heartbeat', 'Alive')).toMatchObject([{ alive: true, revived: true, key }]);
    expect(await heldToken(bed.redis, key)).toBe(result.locks('Acquire', 'Acquired')[0].fencingToken);
  });

  it('releasing after the lease ran out and somebody else entered reports the overlap', async () => {
    const key = bed.key();
    const run = bed.engine.start(
      workflow(
        [acquire('Acquire', { key, ttl: 1, options: { keepAlive: false } }), hold('Hold'), heartbeat('Heartbeat', {}), release('Release', {})],
        'Start -> Acquire -> Hold -> Heartbeat:Lost -> Release',
      ),
    );
    await run.reached('Hold', 'holding');
    await untilFree(bed.redis, key);
    const other = await bed.engine.run(workflow([acquire('Other', { key })], 'Start -> Other'));
    await run.letGo('Hold');
    const result = await run.finished;

    const { executionId } = other;
    expect(result.locks('Heartbeat', 'Lost')).toMatchObject([
      { alive: false, reason: 'expired', holder: { executionId } },
    ]);
    expect(result.locks('Release', 'Not Held')).toMatchObject([
      { released: false, overlapped: true, holder: { executionId } },
    ]);
    expect(await heldToken(bed.redis, key)).toBe(other.locks('Other', 'Acquired')[0].fencingToken);
  });

  describe('a key that the execution holds already', () => {
    it('gets another hold from another Acquire node', async () => {
      const key = bed.key();
      const run = bed.engine.start(
        workflow(
          [
            acquire('First', { key }),
            acquire('Second', { key }),
            release('Free one', {}),
            hold('Hold'),
            release('Free both', {}),
          ],
          'Start -> First -> Second -> Free one -> Hold -> Free both',
        ),
      );
      await run.reached('Hold', 'holding');
      const token = await heldToken(bed.redis, key);
      await run.letGo('Hold');
      const result = await run.finished;

      expect(result.locks('First', 'Acquired')[0].fencingToken).toBe(token);
      expect(result.locks('Second', 'Acquired')[0].fencingToken).toBe(token);
      expect(result.counts('Free one')).toEqual([1, 0]);
      expect(result.counts('Free both')).toEqual([1, 0]);
      expect(await bed.redis.exists(key)).toBe(0);
    });

    it('gets no second hold from the same node in a loop', async () => {
      const key = bed.key();
      const result = await bed.engine.run(
        workflow(
          [loop('Loop'), acquire('Acquire', { key }), release('Release', {})],
          'Start -> Loop:Loop -> Acquire -> Loop',
          'Loop:Done -> Release',
        ),
        { items: [{ json: { n: 1 } }, { json: { n: 2 } }] },
      );

      expect(result.locks('Acquire', 'Acquired')).toHaveLength(2);
      expect(result.counts('Release')).toEqual([2, 0]);
      expect(await bed.redis.exists(key)).toBe(0);
    });
  });
});

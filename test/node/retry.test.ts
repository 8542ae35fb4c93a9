import { until } from '../../scripts/lib/wait';
import { useBed } from './harness/bed';
import { engineVersions } from './harness/engine';
import { heldToken } from './harness/look';
import { acquire, acquireOnce, boom, heartbeat, release, replace, steal, wait, workflow } from './harness/workflow';

describe.each(engineVersions)('retried and resumed executions on n8n-core %s', (version) => {
  const bed = useBed(version);

  it('a retry, which has another execution id, renews and releases the lock that its items carry', async () => {
    const key = bed.key();
    const flow = workflow(
      [acquire('Acquire', { key }), boom('Boom'), heartbeat('Heartbeat', {}), release('Release', {})],
      'Start -> Acquire -> Boom -> Heartbeat -> Release',
    );
    const failed = await bed.engine.run(flow);
    expect(failed.error?.message).toBe('boom');
    expect(await bed.redis.exists(key)).toBe(1);

    const retried = await bed.engine.retry(flow, failed);
    expect(retried.order).toEqual(['Boom', 'Heartbeat', 'Release']);
    expect(retried.locks('Heartbeat', 'Alive')).toMatchObject([{ alive: true, key }]);
    expect(retried.locks('Release', 'Released')).toMatchObject([{ released: true, key }]);
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('a retry does so in another process too', async () => {
    const key = bed.key();
    const flow = workflow(
      [acquire('Acquire', { key }), boom('Boom'), release('Release', {})],
      'Start -> Acquire -> Boom -> Release',
    );
    const failed = await bed.engine.run(flow);
    const retried = await (await bed.secondEngine()).retry(flow, failed);

    expect(retried.counts('Release')).toEqual([1, 0]);
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('a retry of an Acquire that failed takes the lock', async () => {
    const key = bed.key();
    await bed.redis.hset(key, 'in', 'the way');
    const flow = workflow([acquire('Acquire', { key }), release('Release', {})], 'Start -> Acquire -> Release');
    const failed = await bed.engine.run(flow);
    expect(failed.status).toBe('error');

    await bed.redis.del(key);
    const retried = await bed.engine.retry(flow, failed);
    expect(retried.counts('Acquire')).toEqual([1, 0, 0]);
    expect(retried.counts('Release')).toEqual([1, 0]);
  });

  it('a retry of an Acquire that failed, with Always Output Data, puts nothing on Acquired when it is busy', async () => {
    const key = bed.key();
    await bed.redis.hset(key, 'in', 'the way');
    const flow = workflow(
      [acquire('Acquire', { key }, { alwaysOutputData: true })],
      'Start -> Acquire -> Critical section',
    );
    const failed = await bed.engine.run(flow);
    expect(failed.status).toBe('error');

    await bed.redis.del(key);
    await bed.engine.run(workflow([acquire('Other', { key })], 'Start -> Other'));
    const retried = await bed.engine.retry(flow, failed);
    expect(retried.counts('Acquire')).toEqual([0, 1, 0]);
    expect(retried.ran('Critical section')).toBe(false);
  });

  it('Retry on Fail tries again and takes the lock', async () => {
    const key = bed.key();
    await bed.redis.acl('SETUSER', 'late', 'on', 'nopass', '&*', '+@all');
    const run = bed.engine.start(
      workflow(
        [acquire('Acquire', { key }, { retryOnFail: true, maxTries: 5, waitBetweenTries: 100 })],
        'Start -> Acquire -> Critical section',
      ),
      { credentials: { redis: { ...bed.credential, user: 'late', password: 'any' } } },
    );
    await until('the first refusal', async () => ((await bed.redis.acl('LOG')) as unknown[]).length > 0, {
      everyMs: 5,
    });
    await bed.redis.acl('SETUSER', 'late', '~*');

    const result = await run.finished;
    expect(result.counts('Acquire')).toEqual([1, 0, 0]);
    expect(result.counts('Critical section')).toEqual([1]);
  });

  describe('Retry on Fail, which n8n also does for an item that merely has an "error" field,', () => {
    const again = { retryOnFail: true, maxTries: 2, waitBetweenTries: 1 };
    const items = [{ json: { error: 'no such page' } }];

    it('does not lose a lock that Acquire took', async () => {
      const key = bed.key();
      const result = await bed.engine.run(workflow([acquire('Acquire', { key }, again)], 'Start -> Acquire'), {
        items,
      });

      expect(result.counts('Acquire')).toEqual([1, 0, 0]);
      expect(result.locks('Acquire', 'Acquired')[0].fencingToken).toBe(await heldToken(bed.redis, key));
    });

    it('does not lose a lock that Acquire Once took, nor take it for done before', async () => {
      const key = bed.key();
      const result = await bed.engine.run(workflow([acquireOnce('Once', { key }, again)], 'Start -> Once'), { items });

      expect(result.counts('Once')).toEqual([1, 0, 0, 0]);
      expect(result.locks('Once', 'Acquired')[0].fencingToken).toBe(await heldToken(bed.redis, key));
    });

    it('does not lose a lock that Steal took', async () => {
      const key = bed.key();
      await bed.engine.run(workflow([acquire('Other', { key })], 'Start -> Other'));
      const parameters = { key, stealIf: 'fencingToken', fencingToken: await heldToken(bed.redis, key) };
      const result = await bed.engine.run(workflow([steal('Steal', parameters, again)], 'Start -> Steal'), { items });

      expect(result.counts('Steal')).toEqual([1, 0]);
      expect(result.locks('Steal', 'Stolen')[0].fencingToken).toBe(await heldToken(bed.redis, key));
    });

    it('does not call a lock that Release gave back not held', async () => {
      const key = bed.key();
      const nodes = [acquire('Acquire', { key }), replace('Request', items[0].json), release('Release', {}, again)];
      const result = await bed.engine.run(workflow(nodes, 'Start -> Acquire -> Request -> Release'));

      expect(result.counts('Release')).toEqual([1, 0]);
      expect(await bed.redis.exists(key)).toBe(0);
    });
  });

  it('an execution that resumes in another process still finds its lock, with nothing on the item', async () => {
    const key = bed.key();
    const flow = workflow(
      [
        acquire('Acquire', { key }),
        replace('HTTP Request', {}),
        wait('Wait'),
        heartbeat('Heartbeat', {}),
        release('Release', {}),
      ],
      'Start -> Acquire -> HTTP Request -> Wait -> Heartbeat -> Release',
    );
    const suspended = await bed.engine.run(flow);
    expect(suspended.status).toBe('waiting');
    expect(await bed.redis.exists(key)).toBe(1);

    const resumed = await (await bed.secondEngine()).resume(flow, suspended);
    expect(resumed.locks('Heartbeat', 'Alive')).toMatchObject([{ alive: true, key }]);
    expect(resumed.locks('Release', 'Released')).toMatchObject([{ released: true, key }]);
    expect(await bed.redis.exists(key)).toBe(0);
  });
});

import { until } from '../../scripts/lib/wait';
import { useBed } from './harness/bed';
import { engineVersions } from './harness/engine';
import { heldToken } from './harness/look';
import { acquire as outliving, boom, call, careful, heartbeat, hold, named, release, replace, runWorkflow, wait, withSettings, workflow } from './harness/workflow';

const { acquire } = careful;

describe.each(engineVersions)('a lock in a sub-workflow on n8n-core %s', (version) => {
  const bed = useBed(version);
  const forCaller = { owner: 'caller' };

  it('belongs to the sub-workflow, and ends with it', async () => {
    const key = bed.key();
    const child = named('child', workflow([acquire('Acquire', { key }), hold('Work')], 'Start -> Acquire -> Work'));
    const run = bed.engine.start(workflow([call('Call', 'child'), hold('Later')], 'Start -> Call -> Later'), { workflows: [child] });
    await run.letGo('Work');
    await run.reached('Later', 'holding');
    expect(await bed.redis.exists(key)).toBe(0);
    await run.letGo('Later');
    expect((await run.finished).status).toBe('success');
  });

  it('is refused where the sub-workflow would end right behind it, with the remedy', async () => {
    const key = bed.key();
    const child = named('child', workflow([acquire('Acquire', { key })], 'Start -> Acquire'));
    const result = await bed.engine.run(workflow([call('Call', 'child')], 'Start -> Call'), { workflows: [child] });
    expect(result.status).toBe('error');
    expect(result.errorText).toContain('Choose Options, Owner: Calling Execution.');
    expect(await bed.redis.exists(key)).toBe(0);
  });

  describe('with Owner: Calling Execution', () => {
    const taking = (key: string, options = {}) =>
      named('taking', workflow([acquire('Take', { key, ttl: 60, options: { ...forCaller, ...options } })], 'Start -> Take'));

    it('outlives it; the caller renews it, gives it back, and is its holder', async () => {
      const key = bed.key();
      const flow = workflow([call('Call', 'taking'), heartbeat('Heartbeat', {}), release('Release', {})], 'Start -> Call -> Heartbeat -> Release');
      const run = bed.engine.start(flow, { workflows: [taking(key)] });
      const result = await run.finished;
      const [{ executionId }] = run.children;
      expect(executionId).not.toBe(result.executionId);
      const [lock] = result.items('Call', 'Output').map(({ json }) => json.lock!);
      expect(lock).toMatchObject({ acquired: true, key, acquiredBy: 'Take', heldFor: result.executionId });
      expect(result.locks('Heartbeat', 'Alive')).toMatchObject([{ alive: true, key }]);
      expect(result.locks('Release', 'Released')).toMatchObject([{ released: true, key }]);
      expect(await bed.redis.exists(key)).toBe(0);
    });

    it('is renewed while the caller runs, and released at its end, when a node of the caller has run before', async () => {
      const [own, key] = [bed.key(), bed.key()];
      const child = named('taking', workflow([acquire('Take', { key, ttl: 1, options: forCaller })], 'Start -> Take'));
      const flow = workflow([acquire('First', { key: own }), call('Call', 'taking'), hold('Work')], 'Start -> First -> Call -> Work');
      const run = bed.engine.start(flow, { workflows: [child] });
      await run.reached('Work', 'holding');
      const token = await heldToken(bed.redis, key);
      const began = Date.now();
      await until('two TTLs', async () => {
        expect(await heldToken(bed.redis, key)).toBe(token);
        return Date.now() - began > 2000;
      });
      await run.letGo('Work');
      await run.finished;
      expect(await bed.redis.exists(own, key)).toBe(0);
    });

    it('is found by the caller with nothing left on the items', async () => {
      const key = bed.key();
      for (const target of ['auto', 'execution']) {
        const flow = workflow([call('Call', 'taking'), replace('Request', {}), release('Release', { target })], 'Start -> Call -> Request -> Release');
        const result = await bed.engine.run(flow, { workflows: [taking(key)] });
        expect(result.locks('Release', 'Released')).toMatchObject([{ released: true, key }]);
        expect(await bed.redis.exists(key)).toBe(0);
      }
    });

    it('is found by another sub-workflow of the same caller, by key', async () => {
      const key = bed.key();
      const giving = named('giving', workflow([release('Give', { target: 'key', key, options: forCaller })], 'Start -> Give'));
      const flow = workflow([call('Take it', 'taking'), replace('Request', {}), call('Give it', 'giving')], 'Start -> Take it -> Request -> Give it');
      const run = bed.engine.start(flow, { workflows: [taking(key), giving] });
      await run.finished;
      expect(run.children[1].result.locks('Give', 'Released')).toMatchObject([{ released: true, key }]);
      expect(await bed.redis.exists(key)).toBe(0);
    });

    it('adds a hold to a lock that the caller has, and gives back only that', async () => {
      const key = bed.key();
      const child = named(
        'child',
        workflow([acquire('Take', { key, ttl: 60, options: forCaller }), release('Give', {})], 'Start -> Take -> Give'),
      );
      const flow = workflow([acquire('Acquire', { key, ttl: 60 }), call('Call', 'child'), hold('Work'), release('Release', {})], 'Start -> Acquire -> Call -> Work -> Release');
      const run = bed.engine.start(flow, { workflows: [child] });
      await run.reached('Work', 'holding');
      const [{ result: inner }] = run.children;
      expect(inner.locks('Take', 'Acquired')).toMatchObject([{ acquired: true, reentrant: true, fencingToken: await heldToken(bed.redis, key) }]);
      expect(inner.locks('Give', 'Released')).toMatchObject([{ released: true, holdsLeft: 1 }]);
      await run.letGo('Work');
      const result = await run.finished;
      expect(result.locks('Release', 'Released')).toMatchObject([{ released: true, key }]);
      expect(await bed.redis.exists(key)).toBe(0);
    });

    it('lasts for its TTL when neither the caller nor an error workflow looks after it, and the error workflow finds it', async () => {
      const key = bed.key();
      const flow = workflow([call('Call', 'taking'), boom('Boom')], 'Start -> Call -> Boom');
      const failed = await bed.engine.run(flow, { workflows: [taking(key)] });
      expect(failed.status).toBe('error');
      expect(await bed.redis.pttl(key)).toBeGreaterThan(50_000);

      const freed = await bed.engine.run(
        workflow([release('Release', { target: 'otherExecution', executionId: '={{ $json.execution.id }}' })], 'Start -> Release'),
        { items: [{ json: { execution: { id: failed.executionId } } }] },
      );
      expect(freed.locks('Release', 'Released')).toMatchObject([{ released: true, ofExecution: failed.executionId, keys: [key] }]);
      expect(await bed.redis.exists(key)).toBe(0);
    });

    it('is refused in one that its caller does not wait for', async () => {
      const key = bed.key();
      const run = bed.engine.start(workflow([call('Call', 'taking', { wait: false })], 'Start -> Call'), { workflows: [taking(key)] });
      await run.called(1);
      const [{ result }] = run.children;
      expect(result.status).toBe('error');
      expect(result.errorText).toContain('does not wait for this one');
      expect(await bed.redis.exists(key)).toBe(0);
    });

    it('is this execution’s own where nothing called it, with a hint', async () => {
      const key = bed.key();
      const result = await bed.engine.run(workflow([acquire('Take', { key, options: forCaller })], 'Start -> Take -> Work'));
      expect(result.counts('Take')).toEqual([1, 0, 0]);
      expect(result.runs('Take')[0].hints.map(({ message }) => message).join()).toContain('no other workflow called this one');
      expect(await bed.redis.exists(key)).toBe(0);
    });
  });

  it('is Busy at once when its own caller has it: it would wait for ever', async () => {
    const key = bed.key();
    const child = named('child', workflow([acquire('Take', { key, whenBusy: 'wait', maxWait: 60 })], 'Start -> Take -> Work', 'Take:Busy -> Busy'));
    const flow = workflow([acquire('Acquire', { key }), call('Call', 'child')], 'Start -> Acquire -> Call');
    const run = bed.engine.start(flow, { workflows: [child] });
    const result = await run.finished;
    expect(run.children[0].result.locks('Take', 'Busy')).toMatchObject([
      { acquired: false, reason: 'heldByCaller', holder: { executionId: result.executionId } },
    ]);
  });
});

describe.each(engineVersions)('Run Workflow on n8n-core %s', (version) => {
  const bed = useBed(version);
  const section = (name: string, more = {}) => runWorkflow('Run', { workflowId: { __rl: true, mode: 'id', value: name }, ttl: 60, ...more });

  it('runs it once with all items under one lock, and gives the lock back', async () => {
    const key = bed.key();
    const child = named('child', workflow([hold('Work'), replace('Answer', { done: true })], 'Start -> Work -> Answer'));
    const run = bed.engine.start(workflow([section('child', { key })], 'Start -> Run -> Next'), {
      workflows: [child],
      items: [{ json: { n: 1 } }, { json: { n: 2 } }],
    });
    await run.reached('Work', 'holding');
    const token = await heldToken(bed.redis, key);
    expect(token).not.toBeNull();
    const other = await bed.engine.run(workflow([section('child', { key })], 'Start -> Run'), { workflows: [child] });
    expect(other.locks('Run', 'Busy')).toMatchObject([{ acquired: false, reason: 'held', holder: { executionId: run.executionId } }]);
    await run.letGo('Work');
    const result = await run.finished;
    expect(run.children).toHaveLength(1);
    expect(result.items('Run', 'Done')).toMatchObject([
      { json: { done: true, lock: { acquired: true, released: true, key, fencingToken: token } }, pairedItem: { item: 0 } },
      { json: { done: true, lock: { released: true } }, pairedItem: { item: 1 } },
    ]);
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('runs it for each item, with the lock of its own key, one after the other', async () => {
    const keys = [bed.key(), bed.key()];
    const child = named('child', workflow([hold('Work')], 'Start -> Work'));
    const run = bed.engine.start(workflow([section('child', { key: '={{ $json.key }}', runOnce: 'each' })], 'Start -> Run'), {
      workflows: [child],
      items: keys.map((key) => ({ json: { key } })),
    });
    await run.reached('Work', 'holding');
    expect([await bed.redis.exists(keys[0]), await bed.redis.exists(keys[1])]).toEqual([1, 0]);
    await run.letGo('Work');
    await run.called(1);
    await until('the second lock', async () => (await bed.redis.exists(keys[1])) === 1);
    expect(await bed.redis.exists(keys[0])).toBe(0);
    await run.letGo('Work');
    const result = await run.finished;
    expect(result.items('Run', 'Done')).toMatchObject(keys.map((key, item) => ({ json: { lock: { released: true, key } }, pairedItem: { item } })));
    expect(await bed.redis.exists(...keys)).toBe(0);
  });

  it('refuses several keys around one run', async () => {
    const result = await bed.engine.run(workflow([section('child', { key: '={{ $json.key }}' })], 'Start -> Run'), {
      workflows: [],
      items: [{ json: { key: bed.key() } }, { json: { key: bed.key() } }],
    });
    expect(result.status).toBe('error');
    expect(result.errorText).toContain('Choose Once for Each Item.');
  });

  it.each([
    ['stopWorkflow', undefined],
    ['continueRegularOutput', 'Busy'],
    ['continueErrorOutput', 'Error'],
  ] as const)('gives the lock back when the workflow fails, and follows On Error (%s) then', async (onError, output) => {
    const key = bed.key();
    const child = named('child', workflow([boom('Boom')], 'Start -> Boom'));
    const node = { ...section('child', { key }), onError };
    const result = await bed.engine.run(workflow([node], 'Start -> Run -> Next'), { workflows: [child] });
    expect(await bed.redis.exists(key)).toBe(0);
    expect(result.ran('Next')).toBe(false);
    if (output === undefined) expect(result.errorText).toContain('boom');
    else expect(result.items('Run', output)).toMatchObject([{ json: { error: 'boom' } }]);
  });

  it('renews the lock meanwhile, and reports one that was lost', async () => {
    for (const stopWhenLost of [false, true]) {
      const key = bed.key();
      const child = named('child', workflow([hold('Work')], 'Start -> Work'));
      const run = bed.engine.start(workflow([section('child', { key, ttl: 1, options: { stopWhenLost } })], 'Start -> Run -> Next'), { workflows: [child] });
      await run.reached('Work', 'holding');
      const began = Date.now();
      await until('two TTLs', async () => {
        expect(await bed.redis.exists(key)).toBe(1);
        return Date.now() - began > 2000;
      });
      await bed.redis.del(key);
      const other = await bed.engine.run(workflow([outliving('Other', { key })], 'Start -> Other'));
      await run.letGo('Work');
      const result = await run.finished;
      expect(result.ran('Next')).toBe(!stopWhenLost);
      if (stopWhenLost) expect(result.errorText).toContain(`The lock "${key}" was lost while the workflow ran (keyDeleted)`);
      else expect(result.locks('Run', 'Done')).toMatchObject([{ released: false, lost: true, reason: 'keyDeleted' }]);
      expect(await heldToken(bed.redis, key)).toBe(other.locks('Other', 'Acquired')[0].fencingToken);
    }
  });

  it('waits in line, and leaves by Timed Out', async () => {
    const key = bed.key();
    await bed.engine.run(workflow([outliving('Other', { key })], 'Start -> Other'));
    const result = await bed.engine.run(workflow([section('child', { key, whenBusy: 'wait', maxWait: 0.2 })], 'Start -> Run'), { workflows: [] });
    expect(result.locks('Run', 'Timed Out')).toMatchObject([{ acquired: false, reason: 'timedOut', key }]);
  });

  it('keeps the lock for Max Hold when the workflow goes to wait, and a Release behind it gives it back', async () => {
    const key = bed.key();
    const child = named('child', workflow([wait('Wait'), replace('Answer', { done: true })], 'Start -> Wait -> Answer'));
    const flow = workflow([section('child', { key, options: { maxHold: 600 } }), release('Release', {})], 'Start -> Run -> Release');
    const run = bed.engine.start(flow, { workflows: [child], items: [{ json: { asked: true } }] });
    const suspended = await run.finished;
    expect(suspended.status).toBe('waiting');
    const left = await bed.redis.pttl(key);
    expect(left).toBeGreaterThan(600_000);
    expect(left).toBeLessThanOrEqual(660_000);

    const resumed = await bed.engine.resumeWith(flow, suspended, [{ json: { done: true } }], { workflows: [child] });
    expect(resumed.items('Run', 'Done')).toMatchObject([{ json: version.startsWith('1.') ? { asked: true } : { done: true } }]);
    expect(resumed.locks('Release', 'Released')).toMatchObject([{ released: true, key }]);
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('uses the time limit of the workflow for Max Hold', async () => {
    const key = bed.key();
    const child = named('child', workflow([wait('Wait')], 'Start -> Wait'));
    const flow = withSettings(workflow([section('child', { key })], 'Start -> Run'), { executionTimeout: 1200 });
    expect((await bed.engine.run(flow, { workflows: [child] })).status).toBe('waiting');
    const left = await bed.redis.pttl(key);
    expect(left).toBeGreaterThan(1_200_000);
    expect(left).toBeLessThanOrEqual(1_260_000);
  });
});

import { until } from '../../scripts/lib/wait';
import { useBed } from './harness/bed';
import { engineVersions, type RunOptions } from './harness/engine';
import { heldToken, lineLength, untilFree, untilWaiting } from './harness/look';
import type { Result } from './harness/result';
import { acquire, boom, call, careful, getStatus, heartbeat, hold, loop, named, release, replace, wait, workflow, type Json, type WorkflowNode } from './harness/workflow';

const { acquireOnce } = careful;
const DAY_S = 86_400;

describe.each(engineVersions)('Acquire Once on n8n-core %s', (version) => {
  const bed = useBed(version);

  /** Acquire Once, what comes behind it, and a pass behind each of its other outputs. */
  const once = (key: string, parameters: Json = {}, ...behind: WorkflowNode[]) =>
    workflow(
      [acquireOnce('Once', { key, ...parameters }), ...behind],
      ['Start', 'Once', 'Work', ...behind.map(({ name }) => name)].join(' -> '),
      'Once:Busy -> Is busy',
      'Once:Timed Out -> Is late',
      'Once:Done Before -> Was done',
    );
  const deliver = async (key: string, parameters: Json = {}, options: RunOptions = {}) => await bed.engine.run(once(key, parameters), options);
  /** Which of its four outputs an item took. */
  const branch = (result: Result) => ['Acquired', 'Busy', 'Timed Out', 'Done Before'].filter((_, i) => (result.counts('Once')[i] ?? 0) > 0).join();
  const isDone = async (key: string) => branch(await deliver(key)) === 'Done Before';
  const statusOf = async (key: string) =>
    (await bed.engine.run(workflow([getStatus('Status', { key })], 'Start -> Status'))).locks('Status', 'Status')[0];

  it('is mine, then busy, then done before: three branches for three deliveries of one event', async () => {
    const key = bed.key();
    const run = bed.engine.start(once(key, {}, hold('Hold'), release('Release', { options: { doneResult: '{ "invoice": 7 }' } })));
    await run.reached('Hold', 'holding');

    const during = await deliver(key);
    expect(during.counts('Once')).toEqual([0, 1, 0, 0]);
    expect(during.locks('Once', 'Busy')).toMatchObject([{ acquired: false, key, reason: 'held', holder: { executionId: run.executionId } }]);
    expect([during.ran('Work'), during.ran('Is busy'), during.ran('Was done')]).toEqual([false, true, false]);

    const before = Date.now();
    await run.letGo('Hold');
    const first = await run.finished;
    expect(first.counts('Once')).toEqual([1, 0, 0, 0]);
    const [lock] = first.locks('Once', 'Acquired');
    expect(lock).toMatchObject({ acquired: true, key, acquiredBy: 'Once', rememberDoneSeconds: DAY_S });
    expect(first.locks('Release', 'Released')).toMatchObject([{ released: true, key, rememberedAsDoneSeconds: DAY_S }]);
    expect(await bed.redis.exists(key)).toBe(0);

    const again = await deliver(key);
    expect(again.counts('Once')).toEqual([0, 0, 0, 1]);
    expect([again.ran('Work'), again.ran('Is busy'), again.ran('Was done')]).toEqual([false, false, true]);
    const [said] = again.locks('Once', 'Done Before');
    const done = {
      executionId: first.executionId,
      executionUrl: expect.stringContaining(`executions/${first.executionId}`),
      workflowId: 'wf-1',
      workflowName: 'Test workflow',
      nodeName: 'Once',
      host: expect.any(String),
      at: expect.any(String),
      until: expect.any(String),
      fencingToken: lock.fencingToken,
      result: { invoice: 7 },
    };
    expect(said).toEqual({ acquired: false, key, reason: 'doneBefore', done });
    const { at, until: till } = said.done as { at: string; until: string };
    expect(Date.parse(till) - Date.parse(at)).toBe(DAY_S * 1000);
    expect(Math.abs(Date.parse(at) - before)).toBeLessThan(5000);

    expect(await statusOf(key)).toEqual({ state: 'doneMark', key, queueLength: 0, fencingToken: lock.fencingToken, done: said.done });
    // Who asks for the lock itself, and not for what it stands for, gets it.
    expect((await bed.engine.run(workflow([acquire('Acquire', { key })], 'Start -> Acquire'))).counts('Acquire')).toEqual([1, 0, 0]);
    expect(await statusOf(key)).toMatchObject({ state: 'held', done: said.done });
  });

  it('lets each item out by its own branch, in their order, with their data', async () => {
    const keys = ['new', 'done', 'busy', 'new'].map((name) => bed.key(name));
    await deliver(keys[1]);
    const other = bed.engine.start(once(keys[2], {}, hold('Hold')));
    await other.reached('Hold', 'holding');
    const items = keys.map((key, n) => ({ json: { key, n }, binary: { file: { data: 'aGVsbG8=', mimeType: 'text/plain' } } }));
    const result = await bed.engine.run(workflow([acquireOnce('Once', { key: '={{ $json.key }}' })], 'Start -> Once'), { items });
    await other.letGo('Hold');
    await other.finished;

    const seen = (output: string) => result.items('Once', output).map(({ json, binary, pairedItem }) => [json.n, json.key, binary, pairedItem]);
    const item = (n: number) => [n, keys[n], items[n].binary, { item: n }];
    expect(seen('Acquired')).toEqual([item(0), item(3)]);
    expect(seen('Busy')).toEqual([item(2)]);
    expect(seen('Done Before')).toEqual([item(1)]);
  });

  describe('is remembered as done', () => {
    it('at the end of an execution that succeeds without a Release', async () => {
      const key = bed.key();
      const first = await deliver(key);
      expect(first.counts('Once')).toEqual([1, 0, 0, 0]);
      expect(await bed.redis.exists(key)).toBe(0);
      const [{ done }] = (await deliver(key)).locks('Once', 'Done Before') as Array<{ done: Json }>;
      expect(done).toMatchObject({ executionId: first.executionId });
      expect(done).not.toHaveProperty('result');
    });

    it('for all keys of its items', async () => {
      const keys = [bed.key(), bed.key(), bed.key()];
      const items = keys.map((key) => ({ json: { key } }));
      await deliver('={{ $json.key }}', {}, { items });
      expect((await deliver('={{ $json.key }}', {}, { items })).counts('Once')).toEqual([0, 0, 0, 3]);
    });

    it.each([
      ['a text', '"c-1"', 'c-1'],
      ['a number', '0', 0],
      ['a truth', 'false', false],
      ['what an expression gives', '={{ { id: $json.id, list: [1, "a\\nb"] } }}', { id: 5, list: [1, 'a\nb'] }],
      ['nothing', '', undefined],
      ['nothing, by an expression', '={{ $json.none }}', undefined],
    ])('with a result that is %s', async (_title, doneResult, result) => {
      const key = bed.key();
      const first = await bed.engine.run(once(key, {}, release('Release', { options: { doneResult } })), { items: [{ json: { id: 5 } }] });
      expect(first.errorText).toBe('undefined\n');
      const [{ done }] = (await deliver(key)).locks('Once', 'Done Before') as Array<{ done: Json }>;
      expect(done.result).toEqual(result);
    });

    it('for so long as was chosen, and no longer', async () => {
      const key = bed.key();
      const options = { rememberDone: 1 };
      const first = await bed.engine.run(once(key, { options }, release('Release', {})));
      expect(first.locks('Release', 'Released')).toMatchObject([{ rememberedAsDoneSeconds: 1 }]);
      const [{ done }] = (await deliver(key, { options })).locks('Once', 'Done Before') as Array<{ done: { at: string; until: string } }>;
      expect(Date.parse(done.until) - Date.parse(done.at)).toBe(1000);
      await until('it to be forgotten', async () => (await statusOf(key)).state === 'free');
      expect(Date.now()).toBeGreaterThanOrEqual(Date.parse(done.until));
      expect(branch(await deliver(key))).toBe('Acquired');
    });

    it('longer than Redis Lock keeps other things of a key', async () => {
      const key = bed.key();
      await deliver(key, { options: { rememberDone: 30 * DAY_S } });
      expect(await bed.redis.pttl(`{${key}}:rl:lock`)).toBeGreaterThan((30 * DAY_S - 60) * 1000);
    });

    it('when the execution went through a Wait, also in another process', async () => {
      for (const engine of [bed.engine, await bed.secondEngine()]) {
        const key = bed.key();
        const flow = once(key, { options: { rememberDone: 600 } }, replace('Request', {}), wait('Wait'), heartbeat('Heartbeat', {}));
        const suspended = await bed.engine.run(flow);
        expect(suspended.status).toBe('waiting');
        expect(branch(await deliver(key))).toBe('Busy');
        const resumed = await engine.resume(flow, suspended);
        expect(resumed.locks('Heartbeat', 'Alive')).toMatchObject([{ alive: true, key }]);
        expect(await bed.redis.exists(key)).toBe(0);
        const [{ done }] = (await deliver(key)).locks('Once', 'Done Before') as Array<{ done: { at: string; until: string } }>;
        expect(done).toMatchObject({ executionId: suspended.executionId, nodeName: 'Once' });
        expect(Date.parse(done.until) - Date.parse(done.at)).toBe(600_000);
      }
    });

    it('when a Release behind a Wait gives it back, with its result', async () => {
      const key = bed.key();
      const flow = once(key, {}, replace('Request', {}), wait('Wait'), release('Release', { options: { doneResult: '1' } }));
      const resumed = await (await bed.secondEngine()).resume(flow, await bed.engine.run(flow));
      expect(resumed.locks('Release', 'Released')).toMatchObject([{ released: true, key, rememberedAsDoneSeconds: DAY_S }]);
      expect((await deliver(key)).locks('Once', 'Done Before')).toMatchObject([{ done: { result: 1 } }]);
    });

    it.each(['auto', 'execution', 'node', 'key', 'lockId'])('by a Release of %s', async (target) => {
      const key = bed.key();
      const lockId = '={{ $("Once").first().json.lock.lockId }}';
      const flow = once(key, {}, replace('Request', {}), release('Release', { target, key: target === 'key' ? key : '', acquiredBy: 'Once', lockId }));
      const result = await bed.engine.run(flow);
      expect(result.locks('Release', 'Released')).toMatchObject([{ released: true, key, rememberedAsDoneSeconds: DAY_S }]);
      expect(await isDone(key)).toBe(true);
    });

    it('by another execution that was given key and lock ID', async () => {
      const key = bed.key();
      const taken = await deliver(key, { options: { releaseOnEnd: 'never', rememberDone: 600 } });
      const { lockId } = taken.locks('Once', 'Acquired')[0];
      const flow = workflow([release('Release', { target: 'lockId', lockId, key, options: { doneResult: '3' } })], 'Start -> Release');
      const released = await (await bed.secondEngine()).run(flow);
      expect(released.locks('Release', 'Released')).toMatchObject([{ released: true, key, rememberedAsDoneSeconds: 600 }]);
      expect((await deliver(key)).locks('Once', 'Done Before')).toMatchObject([{ done: { executionId: taken.executionId, result: 3 } }]);
    });

    it('when the last of several holds is given back, not before', async () => {
      const key = bed.key();
      const flow = workflow(
        [acquireOnce('Once', { key }), acquireOnce('Inner', { key }), release('Release inner', {}), hold('Hold'), release('Release', {})],
        'Start -> Once -> Inner -> Release inner -> Hold -> Release',
      );
      const run = bed.engine.start(flow);
      await run.reached('Hold', 'holding');
      expect(branch(await deliver(key))).toBe('Busy');
      await run.letGo('Hold');
      const result = await run.finished;
      const [inner] = result.locks('Release inner', 'Released');
      expect(inner).toMatchObject({ released: true, holdsLeft: 1 });
      expect(inner).not.toHaveProperty('rememberedAsDoneSeconds');
      expect(result.locks('Release', 'Released')).toMatchObject([{ released: true, rememberedAsDoneSeconds: DAY_S }]);
      expect(await isDone(key)).toBe(true);
    });
  });

  it('is done before for a later round of the same execution too, once it was released', async () => {
    const key = bed.key();
    const flow = workflow(
      [loop('Loop'), acquireOnce('Once', { key }), release('Release', {})],
      'Start -> Loop:Loop -> Once -> Release -> Loop',
      'Once:Done Before -> Loop',
    );
    const result = await bed.engine.run(flow, { items: [{ json: { n: 1 } }, { json: { n: 2 } }] });
    expect(result.counts('Once')).toEqual([1, 0, 0, 1]);
    expect(result.locks('Once', 'Done Before')).toMatchObject([{ done: { executionId: result.executionId } }]);
  });

  it('stays done where something fails behind the Release', async () => {
    const key = bed.key();
    const failed = await bed.engine.run(once(key, {}, release('Release', {}), boom('Boom')));
    expect(failed.status).toBe('error');
    expect(await isDone(key)).toBe(true);
  });

  describe('leaves no mark', () => {
    it('where Release is told that the work was not done', async () => {
      const key = bed.key();
      const first = await bed.engine.run(once(key, {}, release('Release', { options: { markDone: false, doneResult: '1' } })));
      const [released] = first.locks('Release', 'Released');
      expect(released).toMatchObject({ released: true, key });
      expect(released).not.toHaveProperty('rememberedAsDoneSeconds');
      // Nor at the end of the execution, which succeeds.
      expect(await isDone(key)).toBe(false);
    });

    it('after an error', async () => {
      const key = bed.key();
      const failed = await bed.engine.run(once(key, {}, boom('Boom')));
      expect(failed.status).toBe('error');
      expect(await bed.redis.exists(key)).toBe(0);
      expect(branch(await deliver(key))).toBe('Acquired');
    });

    it('after a stop', async () => {
      const key = bed.key();
      const run = bed.engine.start(once(key, { options: { stopGrace: 1 } }, hold('Hold')));
      await run.reached('Hold', 'holding');
      run.cancel();
      await untilFree(bed.redis, key);
      await run.letGo('Hold');
      expect((await run.finished).status).toBe('canceled');
      expect(branch(await deliver(key))).toBe('Acquired');
    });

    it.each([true, false])('where the lock was lost before (Release: %s)', async (released) => {
      const key = bed.key();
      const run = bed.engine.start(once(key, {}, hold('Hold'), ...(released ? [release('Release', {})] : [])));
      await run.reached('Hold', 'holding');
      await bed.redis.del(key);
      await run.letGo('Hold');
      const result = await run.finished;
      expect(result.status).toBe('success');
      if (released) expect(result.locks('Release', 'Not Held')).toMatchObject([{ released: false, reason: 'keyDeleted' }]);
      expect(branch(await deliver(key))).toBe('Acquired');
    });

    it('by an older attempt of an execution that was resumed twice, only by the newer one', async () => {
      const key = bed.key();
      const flow = once(key, {}, wait('Wait'), heartbeat('Heartbeat', {}), hold('Hold'));
      const suspended = await bed.engine.run(flow);
      const older = bed.engine.startResumed(flow, suspended);
      await older.reached('Hold', 'holding');
      const newer = (await bed.secondEngine()).startResumed(flow, suspended);
      await newer.reached('Hold', 'holding');
      await older.letGo('Hold');
      expect((await older.finished).status).toBe('success');
      expect(branch(await deliver(key))).toBe('Busy');
      await newer.letGo('Hold');
      await newer.finished;
      expect(await isDone(key)).toBe(true);
    });

    it('where its process was killed: when the TTL is over, the next one does it', async () => {
      const key = bed.key();
      const doomed = await bed.secondEngine();
      const run = doomed.start(once(key, { ttl: 1 }, hold('Hold')));
      await run.reached('Hold', 'holding');
      doomed.signal('SIGKILL');
      expect(branch(await deliver(key, { whenBusy: 'wait', maxWait: 20 }))).toBe('Acquired');
    });

    it('where somebody else does it by then: that one does', async () => {
      const key = bed.key();
      const run = bed.engine.start(once(key, {}, hold('Hold'), release('Release', { options: { doneResult: '"late"' } })));
      await run.reached('Hold', 'holding');
      await bed.redis.del(key);
      const second = await bed.engine.run(once(key, {}, release('Release', { options: { doneResult: '"second"' } })));
      await run.letGo('Hold');
      expect((await run.finished).locks('Release', 'Not Held')).toMatchObject([{ released: false }]);
      expect((await deliver(key)).locks('Once', 'Done Before')).toMatchObject([{ done: { executionId: second.executionId, result: 'second' } }]);
    });

    it('by the Release of an error workflow', async () => {
      const key = bed.key();
      const failed = await bed.engine.run(once(key, { options: { releaseOnEnd: 'never' } }, boom('Boom')));
      const items = [{ json: { execution: { id: failed.executionId } } }];
      const freed = await bed.engine.run(workflow([release('Release', { target: 'otherExecution', executionId: '={{ $json.execution.id }}' })], 'Start -> Release'), { items });
      expect(freed.locks('Release', 'Released')).toMatchObject([{ released: true, keys: [key] }]);
      expect(branch(await deliver(key))).toBe('Acquired');
    });

    it('at the end of an execution of which n8n does not tell how it ended, which a hint says; a Release does', async () => {
      const [silent, released] = [bed.key(), bed.key()];
      // n8n 1 does not even tell that it ended: there the lease has to.
      const first = await deliver(silent, { ttl: 1 }, { tellsEnd: 'officially' });
      expect(first.runs('Once')[0].hints.map(({ message }) => message)).toContain(
        'This n8n does not tell whether an execution succeeded, so nothing is remembered as done at its end. Put a Release where the work is done.',
      );
      await untilFree(bed.redis, silent);
      expect(await isDone(silent)).toBe(false);
      await bed.engine.run(once(released, {}, release('Release', {})), { tellsEnd: 'officially' });
      expect(await isDone(released)).toBe(true);
    });
  });

  describe('with Release When Execution Ends', () => {
    it('On Success: marks after success, and stays held after an error', async () => {
      const [good, bad] = [bed.key(), bed.key()];
      const options = { releaseOnEnd: 'success' };
      await deliver(good, { options });
      await bed.engine.run(once(bad, { options }, boom('Boom')));
      expect(branch(await deliver(good))).toBe('Done Before');
      expect(branch(await deliver(bad))).toBe('Busy');
    });

    it('Never: only a Release marks, and without one it stays held', async () => {
      const [released, left] = [bed.key(), bed.key()];
      const options = { releaseOnEnd: 'never' };
      await bed.engine.run(once(released, { options }, release('Release', {})));
      await deliver(left, { options });
      expect(branch(await deliver(released))).toBe('Done Before');
      expect(branch(await deliver(left))).toBe('Busy');
    });
  });

  describe('when n8n’s Retry repeats a failed execution', () => {
    it('marks at the end of the retry, where the lock was kept for it', async () => {
      const key = bed.key();
      const flow = once(key, { options: { releaseOnEnd: 'success', rememberDone: 600 } }, boom('Boom'), heartbeat('Heartbeat', {}));
      const failed = await bed.engine.run(flow);
      const retried = await bed.engine.retry(flow, failed);
      expect(retried.locks('Heartbeat', 'Alive')).toMatchObject([{ alive: true, key }]);
      expect(await bed.redis.exists(key)).toBe(0);
      expect((await deliver(key)).locks('Once', 'Done Before')).toMatchObject([{ done: { executionId: retried.executionId } }]);
    });

    it('does not mark where the lock had ended with the failed one, so that a repetition gets through', async () => {
      const key = bed.key();
      const flow = once(key, {}, boom('Boom'), release('Release', {}));
      const retried = await bed.engine.retry(flow, await bed.engine.run(flow));
      expect(retried.status).toBe('success');
      expect(retried.locks('Release', 'Not Held')).toMatchObject([{ released: false, reason: 'endedWithExecution' }]);
      expect(branch(await deliver(key))).toBe('Acquired');
    });

    it('does it once where it is done by somebody else before the retry', async () => {
      const key = bed.key();
      await bed.redis.hset(key, 'in', 'the way');
      const flow = once(key);
      const failed = await bed.engine.run(flow);
      expect(failed.error?.node).toBe('Once');
      await bed.redis.del(key);
      await deliver(key);
      const retried = await bed.engine.retry(flow, failed);
      expect(retried.counts('Once')).toEqual([0, 0, 0, 1]);
      expect(retried.ran('Work')).toBe(false);
    });
  });

  describe('for one who waits in line', () => {
    const waiting = { whenBusy: 'wait', maxWait: 25 };
    async function startBoth(key: string, ...behind: WorkflowNode[]) {
      const first = bed.engine.start(once(key, {}, hold('Hold'), ...behind));
      await first.reached('Hold', 'holding');
      const waiters = [bed.engine, await bed.secondEngine(), bed.engine].map((engine) => engine.start(once(key, waiting)));
      await untilWaiting(bed.redis, key, 3);
      return { first, waiters };
    }

    it('ends by Done Before as soon as it is done: all of them, in all processes', async () => {
      const key = bed.key();
      const { first, waiters } = await startBoth(key, release('Release', { options: { doneResult: '"r"' } }));
      const letGoAt = Date.now();
      await first.letGo('Hold');
      for (const waiter of waiters) {
        const result = await waiter.finished;
        expect(result.counts('Once')).toEqual([0, 0, 0, 1]);
        expect(result.locks('Once', 'Done Before')).toMatchObject([{ reason: 'doneBefore', done: { executionId: first.executionId, result: 'r' } }]);
        expect(result.ran('Work')).toBe(false);
      }
      // Without a message they would look after 5 s at the earliest.
      expect(Date.now() - letGoAt).toBeLessThan(3000);
      expect(await lineLength(bed.redis, key)).toBe(0);
      await first.finished;
    });

    it('ends by Done Before where it kept its place, and comes back after it was done', async () => {
      const key = bed.key();
      const first = bed.engine.start(once(key, {}, hold('Hold')));
      await first.reached('Hold', 'holding');
      const parameters = { key, whenBusy: 'wait', maxWait: 0.1, options: { keepPlace: 60 } };
      const flow = workflow(
        [acquireOnce('Try', parameters), wait('Pause'), acquireOnce('Once', parameters)],
        'Start -> Try:Timed Out -> Pause -> Once -> Work',
      );
      const suspended = await bed.engine.run(flow);
      expect(suspended.status).toBe('waiting');
      await first.letGo('Hold');
      await first.finished;
      const resumed = await (await bed.secondEngine()).resume(flow, suspended);
      expect(resumed.counts('Once')).toEqual([0, 0, 0, 1]);
      expect(await lineLength(bed.redis, key)).toBe(0);
    });

    it('enters, one at a time, where it was not done', async () => {
      const key = bed.key();
      const { first, waiters } = await startBoth(key, boom('Boom'));
      await first.letGo('Hold');
      const branches = (await Promise.all(waiters.map(async ({ finished }) => await finished))).map(branch).sort();
      expect(branches).toEqual(['Acquired', 'Done Before', 'Done Before']);
    });

    it('times out, fails where that is chosen, and never goes on without the lock', async () => {
      const key = bed.key();
      const first = bed.engine.start(once(key, {}, hold('Hold')));
      await first.reached('Hold', 'holding');
      const late = await deliver(key, { whenBusy: 'wait', maxWait: 0 });
      expect(late.counts('Once')).toEqual([0, 0, 1, 0]);
      const failed = await deliver(key, { whenBusy: 'wait', maxWait: 0, options: { onTimeout: 'error' } });
      expect(failed.errorText).toContain(`The lock "${key}" was not free within 0 s (Max Wait). Execution ${first.executionId}`);
      await first.letGo('Hold');
      await first.finished;
    });
  });

  describe('in sub-workflows', () => {
    const forCaller = { owner: 'caller' };

    it('is marked as the sub-workflow that took it succeeds, and not as it fails', async () => {
      for (const fails of [false, true]) {
        const key = bed.key();
        const child = named('child', once(key, {}, ...(fails ? [boom('Boom')] : [])));
        await bed.engine.run(workflow([call('Call', 'child')], 'Start -> Call'), { workflows: [child] });
        expect(await isDone(key)).toBe(!fails);
      }
    });

    it.each([
      ['the lock on its item', 'lock', {}],
      ['the key', 'lock', { target: 'key', key: '={{ $json.key }}' }],
      ['the lock ID', 'lock', { target: 'lockId', lockId: '={{ $json.lock.lockId }}', key: '' }],
      ['the lock ID and the key, with no lock on the item', 'mine', { target: 'lockId', lockId: '={{ $json.mine.lockId }}', key: '={{ $json.key }}' }],
    ])('is marked by a sub-workflow that releases what its caller took: %s', async (_title, outputField, parameters) => {
      const key = bed.key();
      const child = named('child', workflow([release('Give', { ...parameters, options: { doneResult: '9' } })], 'Start -> Give'));
      const flow = workflow([acquireOnce('Once', { key, options: { rememberDone: 600, outputField } }), call('Call', 'child')], 'Start -> Once -> Call');
      const run = bed.engine.start(flow, { workflows: [child], items: [{ json: { key } }] });
      await run.finished;
      expect(run.children[0].result.locks('Give', 'Released')).toMatchObject([{ released: true, key, rememberedAsDoneSeconds: 600 }]);
      expect((await deliver(key)).locks('Once', 'Done Before')).toMatchObject([{ done: { executionId: run.executionId, result: 9 } }]);
    });

    describe('taken for the caller', () => {
      const taking = (key: string) => named('taking', workflow([acquireOnce('Take', { key, options: { ...forCaller, rememberDone: 600 } })], 'Start -> Take'));

      it.each([
        ['a Release of the caller', release('Release', {})],
        ['a Release by lock ID', release('Release', { target: 'lockId', lockId: '={{ $json.lock.lockId }}', key: '' })],
        ['the end of the caller, after a Heartbeat', heartbeat('Beat', {})],
      ])('is marked by %s', async (_title, behind) => {
        const key = bed.key();
        const flow = workflow([call('Call', 'taking'), behind], `Start -> Call -> ${behind.name}`);
        const run = bed.engine.start(flow, { workflows: [taking(key)] });
        const result = await run.finished;
        expect(result.errorText).toBe('undefined\n');
        expect(await bed.redis.exists(key)).toBe(0);
        expect((await deliver(key)).locks('Once', 'Done Before')).toMatchObject([{ done: { executionId: run.executionId } }]);
      });

      it('is marked at the end of a caller that has met a lock before, and not where that fails', async () => {
        for (const fails of [false, true]) {
          const [own, key] = [bed.key(), bed.key()];
          const end = fails ? boom('End') : hold('End');
          const run = bed.engine.start(workflow([careful.acquire('First', { key: own }), call('Call', 'taking'), end], 'Start -> First -> Call -> End'), { workflows: [taking(key)] });
          if (!fails) await run.letGo('End');
          await run.finished;
          expect(await bed.redis.exists(own, key)).toBe(0);
          expect(await isDone(key)).toBe(!fails);
        }
      });

      it('is marked by another sub-workflow that knows nothing but the key', async () => {
        const key = bed.key();
        const giving = named('giving', workflow([release('Give', { target: 'key', key, options: { ...forCaller, doneResult: '2' } })], 'Start -> Give'));
        const flow = workflow([call('Take it', 'taking'), replace('Request', {}), call('Give it', 'giving')], 'Start -> Take it -> Request -> Give it');
        const run = bed.engine.start(flow, { workflows: [taking(key), giving] });
        await run.finished;
        expect(run.children[1].result.locks('Give', 'Released')).toMatchObject([{ released: true, key, rememberedAsDoneSeconds: 600 }]);
        expect((await deliver(key)).locks('Once', 'Done Before')).toMatchObject([{ done: { executionId: run.executionId, result: 2 } }]);
      });
    });
  });

  it('takes over from a holder that is not heard of any more, where that is chosen', async () => {
    const key = bed.key();
    const options = { releaseOnEnd: 'never', keepAlive: false };
    const dead = await deliver(key, { options });
    const stealing = { options: { stealIfStaleAfter: 0.05 } };
    let second: Result | undefined;
    await until('it to be stale', async () => branch((second = await deliver(key, stealing))) === 'Acquired');
    expect(second?.locks('Once', 'Acquired')).toMatchObject([{ previousHolder: { executionId: dead.executionId } }]);
    expect(await isDone(key)).toBe(true);
  });

  describe('when the key is missing', () => {
    const key = 'evt:{{ $json.id }}';
    /** All of them give the same key, or none. */
    const lacking: Array<[string, string, Json]> = [
      ['a field that is not there', `=${key}`, {}],
      ['a field that is null', `=${key}`, { id: null }],
      ['a field that is empty', `=${key}`, { id: '' }],
      ['an empty list', `=${key}`, { id: [] }],
      ['NaN', '=evt:{{ Number($json.id) }}', { id: 'x' }],
      ['a path into nothing', '=evt:{{ $json.body?.event?.id }}', {}],
      ['a path to an empty text', '=evt:{{ $json.body?.id }}', { body: { id: '' } }],
      ['a path into nothing, without question marks', '=evt:{{ $json.body.id }}', {}],
      ['an empty fallback', '=evt:{{ $json.id || "" }}', {}],
      ['an empty fallback for null', '=evt:{{ $json.id ?? "" }}', { id: null }],
      ['the key itself undefined', '={{ $json.id }}', {}],
      ['the key itself null', '={{ $json.id }}', { id: null }],
      ['the key itself empty', '={{ $json.id }}', { id: '' }],
      ['the key itself an empty list', '={{ $json.id }}', { id: [] }],
      ['added up, undefined', '={{ "evt:" + $json.id }}', {}],
      ['added up, null', '={{ "evt:" + $json.id }}', { id: null }],
      ['added up, empty', '={{ "evt:" + $json.id }}', { id: '' }],
      ['added up, empty in the middle', '={{ "evt:" + $json.id + ":paid" }}', { id: '' }],
      ['a template, undefined', '={{ `evt:${$json.id}` }}', {}],
      ['a template, empty', '={{ `evt:${$json.id}` }}', { id: '' }],
      ['a template, empty in the middle', '={{ `evt:${$json.id}:paid` }}', { id: '' }],
      ['added up, empty at the start', '={{ $json.id + ":evt" }}', { id: '' }],
      ['one of two parts', '={{ $json.shop }}:{{ $json.id }}', { shop: 'a', id: '' }],
      ['a blank before it', '=event {{ $json.id }}', { id: '' }],
    ];

    it.each(lacking)('%s: fails, and drops no later one', async (_title, expression, json) => {
      for (let n = 0; n < 2; n++) {
        const result = await deliver(expression, {}, { items: [{ json }] });
        expect(result.status).toBe('error');
        expect(result.error?.itemIndex).toBe(0);
        expect(result.errorText).toMatch(/^Key \(item 0\) .*(?:Check the expression|check that the field)/);
        expect(result.ran('Work')).toBe(false);
      }
      expect(await bed.redis.keys('*evt*')).toEqual([]);
    });

    it.each(lacking)('%s: goes on unprotected where that is chosen, each time', async (_title, expression, json) => {
      for (let n = 0; n < 2; n++) {
        const result = await deliver(expression, { options: { whenKeyMissing: 'process' } }, { items: [{ json }, { json }] });
        expect(result.counts('Once')).toEqual([2, 0, 0, 0]);
        const lock = { acquired: false, protected: false, deduplicated: false, reason: 'keyMissing' };
        expect(result.items('Once', 'Acquired').map((item) => item.json)).toEqual([{ ...json, lock }, { ...json, lock }]);
        expect(result.counts('Work')).toEqual([2]);
      }
      expect(await bed.redis.keys('*evt*')).toEqual([]);
    });

    it('concerns its own item only', async () => {
      const shop = bed.key();
      const items = [{ json: { id: 1 } }, { json: {} }, { json: { id: 1 } }, { json: { id: '' } }, { json: { id: 2 } }];
      const parameters = { options: { whenKeyMissing: 'process' } };
      const first = await deliver(`=${shop}:{{ $json.id }}`, parameters, { items });
      expect(first.locks('Once', 'Acquired').map(({ acquired, key: its }) => [acquired, its])).toEqual([
        [true, `${shop}:1`], [false, undefined], [false, undefined], [true, `${shop}:2`],
      ]);
      // The same thing twice among its items is the first one's to do.
      expect(first.locks('Once', 'Busy')).toMatchObject([{ key: `${shop}:1`, reason: 'ownExecution' }]);
      const again = await deliver(`=${shop}:{{ $json.id }}`, parameters, { items });
      expect(again.counts('Once')).toEqual([2, 0, 0, 3]);
      expect(again.locks('Once', 'Acquired').map(({ reason }) => reason)).toEqual(['keyMissing', 'keyMissing']);
    });

    it('is said by Heartbeat and Release: never held', async () => {
      const parameters = { key: '={{ $json.id }}', options: { whenKeyMissing: 'process' } };
      const flow = workflow(
        [acquireOnce('Once', parameters), heartbeat('Heartbeat', {}), release('Release', {})],
        'Start -> Once -> Heartbeat:Lost -> Release',
      );
      const result = await bed.engine.run(flow);
      expect(result.counts('Heartbeat')).toEqual([0, 1]);
      expect(result.locks('Heartbeat', 'Lost')).toMatchObject([{ alive: false, reason: 'neverHeld', deduplicated: false }]);
      expect(result.counts('Release')).toEqual([0, 1]);
      expect(result.locks('Release', 'Not Held')).toMatchObject([{ released: false, neverHeld: true, reason: 'neverHeld' }]);
    });

    it('is no matter where colons stand in an ID', async () => {
      const name = bed.key();
      const items = [{ json: { id: 'Shop::Order::7' } }, { json: { id: 'fe80::1' } }];
      for (const expression of [`=${name}:{{ $json.id }}`, `={{ "${name}:" + $json.id }}`, `={{ \`${name}:\${$json.id}\` }}`]) {
        const result = await deliver(expression, { options: { releaseOnEnd: 'never' } }, { items });
        expect(result.errorText).toBe('undefined\n');
        const seen = [...result.locks('Once', 'Acquired'), ...result.locks('Once', 'Busy')].map((lock) => lock.key);
        expect(seen).toEqual(items.map(({ json }) => `${name}:${json.id}`));
      }
    });

    it('is no matter where a part was left out on purpose, or its value is 0 or false', async () => {
      const name = bed.key();
      const items = [{ json: { id: 0 } }, { json: { id: false } }, { json: { id: 'x' } }];
      const result = await deliver(`=${name}:{{ $json.id }}{{ $json.more ? ":" + $json.more : "" }}`, {}, { items });
      expect(result.locks('Once', 'Acquired').map((lock) => lock.key)).toEqual([`${name}:0`, `${name}:false`, `${name}:x`]);
    });
  });

  it('is one item’s to do where two items, or two rounds of a loop, are the same thing', async () => {
    const key = bed.key();
    const flow = workflow([acquireOnce('Once', { key: '={{ $json.key }}', ttl: 60 }), release('Release', {})], 'Start -> Once -> Release');
    const result = await bed.engine.run(flow, { items: [{ json: { key, n: 0 } }, { json: { key, n: 1 } }, { json: { key: bed.key(), n: 2 } }] });
    expect(result.items('Once', 'Acquired').map(({ json }) => json.n)).toEqual([0, 2]);
    expect(result.locks('Once', 'Busy')).toMatchObject([{ acquired: false, reason: 'ownExecution', holder: { executionId: result.executionId } }]);

    const rounds = workflow([loop('Loop'), acquireOnce('Once', { key: '={{ $json.key }}', ttl: 60 })], 'Start -> Loop', 'Loop:Loop -> Once -> Loop', 'Once:Busy -> Loop');
    const other = bed.key();
    const looped = await bed.engine.run(rounds, { items: [{ json: { key: other } }, { json: { key: other } }] });
    expect(looped.locks('Once', 'Acquired')).toMatchObject([{ acquired: true, key: other }]);
    expect(looped.locks('Once', 'Busy')).toMatchObject([{ reason: 'ownExecution', key: other, holder: { executionId: looped.executionId } }]);
  });
  it('shows no lock to whom it is not', async () => {
    const key = bed.key();
    const run = bed.engine.start(once(key, {}, hold('Hold')));
    await run.reached('Hold', 'holding');
    const token = await heldToken(bed.redis, key);
    const busy = await deliver(key);
    await run.letGo('Hold');
    const { lockId } = (await run.finished).locks('Once', 'Acquired')[0];
    const done = await deliver(key);
    expect(done.locks('Once', 'Done Before')).toMatchObject([{ done: { fencingToken: token } }]);
    for (const result of [busy, done]) expect(result.data).not.toContain(lockId);
  });
});

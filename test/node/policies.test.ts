import { until } from '../../scripts/lib/wait';
import { useBed } from './harness/bed';
import { engineVersions } from './harness/engine';
import { acquireOnce, boom, call, careful, getStatus, heartbeat, hold, named, release, replace, runWorkflow, wait, workflow } from './harness/workflow';

const { acquire } = careful;
const bed = (version: (typeof engineVersions)[number]) => useBed(version);

/** The outputs of one run as they are wired here: what is left unwired ends. */
const line = (key: string) => `{${key}}:rl:line`;

describe.each(engineVersions)('Acquire Once on n8n-core %s', (version) => {
  const b = bed(version);
  const section = (key: string, options = {}, more = {}) => acquireOnce('Once', { key, ttl: 60, options, ...more });
  const done = (key: string) => workflow([section(key), replace('Made', { id: 7 }), release('Release', { options: { doneResult: '={{ { id: $json.id } }}' } })], 'Start -> Once -> Made -> Release');

  it('is mine to do, being done, or done before, with when, by whom and the result', async () => {
    const key = b.key();
    const run = b.engine.start(workflow([section(key), hold('Work'), release('Release', { options: { doneResult: '{ "id": 7 }' } })], 'Start -> Once -> Work -> Release'));
    await run.reached('Work', 'holding');
    const second = await b.engine.run(done(key));
    expect(second.locks('Once', 'Busy')).toMatchObject([{ acquired: false, reason: 'held', holder: { executionId: run.executionId } }]);
    await run.letGo('Work');
    const first = await run.finished;
    expect(first.locks('Once', 'Acquired')).toMatchObject([{ acquired: true, key, rememberDoneSeconds: 86_400 }]);
    expect(first.locks('Release', 'Released')).toMatchObject([{ released: true, rememberedAsDoneSeconds: 86_400 }]);
    const third = await b.engine.run(done(key));
    expect(third.counts('Once')).toEqual([0, 0, 0, 1]);
    const [lock] = third.locks('Once', 'Done Before');
    expect(lock).toMatchObject({ acquired: false, key, reason: 'doneBefore', done: { executionId: first.executionId, nodeName: 'Once', result: { id: 7 } } });
    const { at, until: till } = (lock as unknown as { done: { at: string; until: string } }).done;
    expect(Date.parse(till) - Date.parse(at)).toBe(86_400_000);
    const status = await b.engine.run(workflow([getStatus('Status', { key })], 'Start -> Status'));
    expect(status.locks('Status', 'Status')).toMatchObject([{ state: 'doneMark', key, queueLength: 0, done: { executionId: first.executionId } }]);
  });

  it.each([
    ['a successful end', [hold('Work')], 'Start -> Once -> Work', true],
    ['an error', [hold('Work'), boom('Boom')], 'Start -> Once -> Work -> Boom', false],
  ] as const)('%s without a Release marks it: %#', async (_, nodes, wires, isMarked) => {
    const key = b.key();
    const run = b.engine.start(workflow([section(key), ...nodes], wires));
    await run.reached('Work', 'holding');
    await run.letGo('Work');
    await run.finished;
    const again = await b.engine.run(done(key));
    expect(again.counts('Once')).toEqual(isMarked ? [0, 0, 0, 1] : [1, 0, 0, 0]);
  });

  it('a stopped execution leaves no mark', async () => {
    const key = b.key();
    const run = b.engine.start(workflow([section(key, { stopGrace: 1 }), hold('Work')], 'Start -> Once -> Work'));
    await run.reached('Work', 'holding');
    run.cancel();
    await run.letGo('Work');
    await run.finished;
    await until('the grace time to be over', async () => (await b.redis.exists(key)) === 0);
    expect((await b.engine.run(done(key))).counts('Once')).toEqual([1, 0, 0, 0]);
  });

  it('a lock that was lost leaves no mark', async () => {
    const key = b.key();
    const run = b.engine.start(workflow([section(key), hold('Work')], 'Start -> Once -> Work'));
    await run.reached('Work', 'holding');
    await b.redis.del(key);
    await run.letGo('Work');
    await run.finished;
    expect((await b.engine.run(done(key))).counts('Once')).toEqual([1, 0, 0, 0]);
  });

  it('is not marked by a Release that says so, nor by Never', async () => {
    const [one, two] = [b.key(), b.key()];
    await b.engine.run(workflow([section(one), release('Release', { options: { markDone: false } })], 'Start -> Once -> Release'));
    expect((await b.engine.run(done(one))).counts('Once')).toEqual([1, 0, 0, 0]);
    await b.engine.run(workflow([section(two, { releaseOnEnd: 'never' }), replace('Work', {})], 'Start -> Once -> Work'));
    expect((await b.engine.run(done(two))).counts('Once')).toEqual([0, 1, 0, 0]);
  });

  it('is remembered for its time', async () => {
    const key = b.key();
    await b.engine.run(workflow([section(key, { rememberDone: 1 })], 'Start -> Once -> Work'));
    expect((await b.engine.run(done(key))).counts('Once')).toEqual([0, 0, 0, 1]);
    await until('it to be forgotten', async () => (await b.engine.run(workflow([getStatus('Status', { key })], 'Start -> Status'))).locks('Status', 'Status')[0]!.state === 'free');
    expect((await b.engine.run(done(key))).counts('Once')).toEqual([1, 0, 0, 0]);
  });

  it('sends who waits for it out through Done Before, at once', async () => {
    const key = b.key();
    const run = b.engine.start(workflow([section(key), hold('Work'), release('Release', {})], 'Start -> Once -> Work -> Release'));
    await run.reached('Work', 'holding');
    const waiting = Array.from({ length: 5 }, () => b.engine.start(workflow([section(key, {}, { whenBusy: 'wait', maxWait: 60 })], 'Start -> Once -> Work')));
    await until('all to wait', async () => (await b.redis.zcard(line(key))) === 5);
    await run.letGo('Work');
    for (const each of waiting) expect((await each.finished).counts('Once')).toEqual([0, 0, 0, 1]);
  });

  it('is one item’s to do where two items, or two rounds of a loop, are the same thing', async () => {
    const key = b.key();
    const flow = workflow([section('={{ $json.key }}'), release('Release', {})], 'Start -> Once -> Release');
    const result = await b.engine.run(flow, { items: [{ json: { key, n: 0 } }, { json: { key, n: 1 } }, { json: { key: b.key(), n: 2 } }] });
    expect(result.items('Once', 'Acquired').map(({ json }) => json.n)).toEqual([0, 2]);
    expect(result.locks('Once', 'Busy')).toMatchObject([{ acquired: false, reason: 'ownExecution', holder: { executionId: result.executionId } }]);
  });

  it('goes through a Wait, and is marked at the end', async () => {
    const key = b.key();
    const flow = workflow([section(key), wait('Wait'), heartbeat('Heartbeat', {})], 'Start -> Once -> Wait -> Heartbeat');
    const suspended = await b.engine.run(flow);
    expect(suspended.status).toBe('waiting');
    expect((await b.engine.run(done(key))).counts('Once')).toEqual([0, 1, 0, 0]);
    await b.engine.resume(flow, suspended);
    expect((await b.engine.run(done(key))).counts('Once')).toEqual([0, 0, 0, 1]);
  });

  it('is marked by a Release in a sub-workflow, with nothing but the lock id', async () => {
    const key = b.key();
    const child = named('child', workflow([release('Release', { target: 'lockId', lockId: '={{ $json.lock.lockId }}', key })], 'Start -> Release'));
    const run = b.engine.start(workflow([section(key), call('Call', 'child'), hold('Work')], 'Start -> Once -> Call -> Work'), { workflows: [child] });
    await run.reached('Work', 'holding');
    expect((await b.engine.run(done(key))).counts('Once')).toEqual([0, 0, 0, 1]);
    await run.letGo('Work');
    await run.finished;
  });

  it.each([
    ['={{ "" }}', 'is empty'],
    ['={{ $json.none }}', 'is empty'],
    ['={{ null }}', 'is empty'],
    ['=event:{{ $json.none }}', 'has no value on this item'],
    ['event:undefined', 'with "undefined" where a value should be'],
  ])('a key that is missing (%j) is an error, or goes on without; never seen before', async (key, problem) => {
    const failed = await b.engine.run(workflow([section(key)], 'Start -> Once'));
    expect(failed.errorText).toContain(`Key (item 0) ${problem.startsWith('is') ? problem : ''}`);
    expect(failed.errorText).toContain(problem);
    const flow = workflow([section(key, { whenKeyMissing: 'process' }), heartbeat('Heartbeat', {}), release('Release', {})], 'Start -> Once -> Heartbeat', 'Heartbeat:Lost -> Release');
    for (let n = 0; n < 2; n++) {
      const result = await b.engine.run(flow);
      expect(result.locks('Once', 'Acquired')).toMatchObject([{ acquired: false, protected: false, deduplicated: false, reason: 'keyMissing' }]);
      expect(result.locks('Heartbeat', 'Lost')).toMatchObject([{ alive: false, reason: 'neverHeld' }]);
      expect(result.locks('Release', 'Not Held')).toMatchObject([{ released: false, neverHeld: true }]);
    }
  });

  it.each([
    ['acquireOnce', { options: { rememberDone: 0 } }, 'Remembered as Done For (item 0) must be a number of seconds from 1'],
    ['acquireOnce', { options: { whenKeyMissing: 'drop' } }, 'When the Key Is Missing (item 0) is "drop"'],
    ['acquireOnce', { key: "={{ ['a', 'b'] }}" }, 'Key (item 0) is a list, and this takes one key.'],
    ['release', { options: { doneResult: '{ no' } }, 'Result (item 0) is not JSON'],
    ['release', { options: { doneResult: JSON.stringify('x'.repeat(4096)) } }, 'Result (item 0) has 4098 bytes as JSON, and 4096 are allowed.'],
  ])('%s refuses %j', async (operation, parameters, message) => {
    const node = operation === 'release' ? release('Node', parameters) : acquireOnce('Node', { key: b.key(), ttl: 60, ...parameters });
    const result = await b.engine.run(workflow([node], 'Start -> Node'));
    expect(result.status).toBe('error');
    expect(result.errorText).toContain(message);
  });
});

describe.each(engineVersions)('Max Holders, Mode and Waiting on n8n-core %s', (version) => {
  const b = bed(version);
  const inside = (key: string, options: object, more = {}) => b.engine.start(workflow([acquire('Acquire', { key, options, ...more }), hold('Work')], 'Start -> Acquire -> Work'));

  it('lets in N at once, and says how full it is', async () => {
    const key = b.key();
    const runs: Array<ReturnType<typeof inside>> = [];
    for (let n = 0; n < 2; n++) {
      const run = inside(key, { maxHolders: 2 });
      await run.reached('Work', 'holding');
      runs.push(run);
    }
    const third = await b.engine.run(workflow([acquire('Acquire', { key, options: { maxHolders: 2 } })], 'Start -> Acquire'));
    expect(third.locks('Acquire', 'Busy')).toMatchObject([{ reason: 'held' }]);
    const other = await b.engine.run(workflow([acquire('Acquire', { key, options: { maxHolders: 3 } })], 'Start -> Acquire'));
    expect(other.locks('Acquire', 'Busy')).toMatchObject([{ reason: 'otherLimit' }]);
    const status = await b.engine.run(workflow([getStatus('Status', { key })], 'Start -> Status'));
    expect(status.locks('Status', 'Status')).toMatchObject([{ state: 'held', holders: 2, maxHolders: 2, freePermits: 0 }]);
    for (const run of runs) await run.letGo('Work');
    const results = await Promise.all(runs.map((run) => run.finished));
    expect(results.flatMap((result) => result.locks('Acquire', 'Acquired')).map(({ holders, freePermits }) => [holders, freePermits])).toEqual([[1, 1], [2, 0]]);
    expect(await b.redis.exists(key)).toBe(0);
  });

  it('shows different numbers of one key', async () => {
    const key = b.key();
    const runs = [inside(key, { maxHolders: 5 }), inside(key, { maxHolders: 3 })];
    for (const run of runs) await run.reached('Work', 'holding');
    const status = await b.engine.run(workflow([getStatus('Status', { key })], 'Start -> Status'));
    expect(status.locks('Status', 'Status')).toMatchObject([{ holders: 2, maxHolders: 3, freePermits: 1, differentMaxHolders: [3, 5] }]);
    for (const run of runs) await run.letGo('Work');
    await Promise.all(runs.map((run) => run.finished));
  });

  it('is one lock per key in one run: different terms are refused', async () => {
    const key = b.key();
    const items = [{ json: { n: 1 } }, { json: { n: 2 } }];
    const result = await b.engine.run(workflow([acquire('Acquire', { key, options: { maxHolders: '={{ $json.n }}' } })], 'Start -> Acquire'), { items });
    expect(result.errorText).toContain(`Max Holders (item 1) is 2, but item 0 asks for the same key "${key}" with 1.`);
    const mode = await b.engine.run(workflow([acquire('Acquire', { key, options: { mode: "={{ $json.n === 1 ? 'shared' : 'exclusive' }}" } })], 'Start -> Acquire'), { items });
    expect(mode.errorText).toContain('Mode (item 1) is Exclusive, but item 0 asks for the same key');
    expect(await b.redis.exists(key)).toBe(0);
  });

  it('runs a workflow under one of N permits', async () => {
    const key = b.key();
    const child = named('child', workflow([hold('Work')], 'Start -> Work'));
    const run = () => b.engine.start(workflow([runWorkflow('Run', { key, ttl: 60, workflowId: { __rl: true, mode: 'id', value: 'child' }, options: { maxHolders: 2 } })], 'Start -> Run'), { workflows: [child] });
    const runs = [run(), run()];
    for (const each of runs) await each.reached('Work', 'holding');
    expect((await b.engine.run(workflow([getStatus('Status', { key })], 'Start -> Status'))).locks('Status', 'Status')).toMatchObject([{ holders: 2 }]);
    for (const each of runs) await each.letGo('Work');
    for (const each of runs) expect((await each.finished).locks('Run', 'Done')).toMatchObject([{ released: true }]);
  });

  it('is shared by readers, and a writer’s alone, in turn', async () => {
    const key = b.key();
    const shared = { mode: 'shared' };
    const readers = [inside(key, shared), inside(key, shared)];
    for (const run of readers) await run.reached('Work', 'holding');
    const writer = inside(key, {}, { whenBusy: 'wait', maxWait: 60 });
    await until('the writer to wait', async () => (await b.redis.zcard(line(key))) === 1);
    const later = await b.engine.run(workflow([acquire('Acquire', { key, options: shared })], 'Start -> Acquire'));
    expect(later.counts('Acquire')).toEqual([0, 1, 0]);
    for (const run of readers) await run.letGo('Work');
    expect((await Promise.all(readers.map((run) => run.finished))).map((result) => result.locks('Acquire', 'Acquired')[0]!.mode)).toEqual(['shared', 'shared']);
    await writer.reached('Work', 'holding');
    expect((await b.engine.run(workflow([acquire('Acquire', { key, options: shared })], 'Start -> Acquire'))).locks('Acquire', 'Busy')).toMatchObject([{ reason: 'held', holder: { executionId: writer.executionId } }]);
    await writer.letGo('Work');
    await writer.finished;
  });

  it('does not change its mode while the execution holds it', async () => {
    for (const [first, second] of [['shared', 'exclusive'], ['exclusive', 'shared']]) {
      const key = b.key();
      const result = await b.engine.run(workflow([acquire('A', { key, options: { mode: first } }), acquire('B', { key, options: { mode: second } })], 'Start -> A -> B -> Work'));
      expect(result.errorText).toContain(`Mode (item 0) is ${second === 'shared' ? 'Shared' : 'Exclusive'}, but this execution holds "${key}"`);
      expect(await b.redis.exists(key)).toBe(0);
    }
  });

  it('serves the newest only: after a burst the one that runs and the newest have worked', async () => {
    const key = b.key();
    const running = inside(key, {});
    await running.reached('Work', 'holding');
    const burst: Array<ReturnType<typeof inside>> = [];
    for (let n = 0; n < 6; n++) {
      burst.push(inside(key, { waitingPolicy: 'newest' }, { whenBusy: 'wait', maxWait: 60 }));
      const before = n;
      await until('it to be the newest', async () => {
        const newest = await b.redis.hget(`{${key}}:rl:lock`, 'newest');
        return newest !== null && String(await b.redis.hget(`{${key}}:rl:wait`, newest)).includes(`"executionId":"${burst[before]!.executionId}"`);
      });
    }
    for (const [n, run] of burst.slice(0, 5).entries()) {
      const [lock] = (await run.finished).locks('Acquire', 'Busy');
      expect(lock).toMatchObject({ acquired: false, reason: 'superseded', holder: { executionId: running.executionId } });
      expect(burst.slice(n + 1).map(({ executionId }) => executionId)).toContain((lock as unknown as { supersededBy: { executionId: string } }).supersededBy.executionId);
    }
    await running.letGo('Work');
    const last = burst[5]!;
    await last.reached('Work', 'holding');
    await last.letGo('Work');
    expect((await last.finished).counts('Acquire')).toEqual([1, 0, 0]);
    await running.finished;
  });

  it('lets a burst settle, also on a free lock', async () => {
    const key = b.key();
    const options = { waitingPolicy: 'newest', settleTime: 0.4, settleAtMost: 30 };
    const started = Date.now();
    const run = await b.engine.run(workflow([acquire('Acquire', { key, options, whenBusy: 'wait', maxWait: 20 })], 'Start -> Acquire -> Work'));
    expect(run.counts('Acquire')).toEqual([1, 0, 0]);
    expect(Date.now() - started).toBeGreaterThanOrEqual(400);
    expect(run.locks('Acquire', 'Acquired')[0]!.waitedMs).toBeGreaterThanOrEqual(395);
  });

  it.each([
    [{ maxHolders: 0 }, {}, 'Max Holders (item 0) must be a whole number from 1 to 1000, not 0.'],
    [{ maxHolders: 1.5 }, {}, 'Max Holders (item 0) must be a whole number from 1 to 1000, not 1.5.'],
    [{ maxHolders: 'many' }, {}, 'Max Holders (item 0) must be a whole number from 1 to 1000, not "many".'],
    [{ mode: 'shared', maxHolders: 2 }, {}, "Mode (item 0) is Shared, which lets in any number, so it can't go together with Max Holders 2."],
    [{ mode: 'both' }, {}, 'Mode (item 0) is "both", which this version does not know.'],
    [{ waitingPolicy: 'newest' }, {}, 'Waiting (item 0) is Only the Newest, but When Busy does not wait. Choose When Busy: Wait in Line.'],
    [{ waitingPolicy: 'oldest' }, {}, 'Waiting (item 0) is "oldest", which this version does not know.'],
    [{ settleTime: 1 }, { whenBusy: 'wait' }, 'Settle Time (item 0) is for Waiting: Only the Newest.'],
    [{ waitingPolicy: 'newest', settleTime: 30 }, { whenBusy: 'wait', maxWait: 30 }, 'Settle Time (item 0) must be shorter than Max Wait (30 s)'],
    [{ waitingPolicy: 'newest', settleAtMost: 3 }, { whenBusy: 'wait' }, 'Settle At Most (item 0) needs a Settle Time.'],
    [{ waitingPolicy: 'newest', settleTime: 3, settleAtMost: 2 }, { whenBusy: 'wait' }, 'Settle At Most (item 0) must not be shorter than Settle Time (3 s).'],
  ])('refuses %j with %j', async (options, parameters, message) => {
    const key = b.key();
    const result = await b.engine.run(workflow([acquire('Acquire', { key, options, ...parameters })], 'Start -> Acquire'));
    expect(result.status).toBe('error');
    expect(result.errorText).toContain(message);
    expect(await b.redis.exists(key, `{${key}}:rl:lock`)).toBe(0);
  });
});

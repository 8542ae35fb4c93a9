import { until } from '../../scripts/lib/wait';
import { useBed } from './harness/bed';
import { engineVersions } from './harness/engine';
import { acquireOnce, careful, hold, loop, release, workflow } from './harness/workflow';

const { acquire } = careful;
const bed = (version: (typeof engineVersions)[number]) => useBed(version);

describe.each(engineVersions)('Acquire Once on n8n-core %s', (version) => {
  const b = bed(version);
  const section = (key: string, options = {}, more = {}) => acquireOnce('Once', { key, ttl: 60, options, ...more });

  it('is one item’s to do where two items, or two rounds of a loop, are the same thing', async () => {
    const key = b.key();
    const flow = workflow([section('={{ $json.key }}'), release('Release', {})], 'Start -> Once -> Release');
    const result = await b.engine.run(flow, { items: [{ json: { key, n: 0 } }, { json: { key, n: 1 } }, { json: { key: b.key(), n: 2 } }] });
    expect(result.items('Once', 'Acquired').map(({ json }) => json.n)).toEqual([0, 2]);
    expect(result.locks('Once', 'Busy')).toMatchObject([{ acquired: false, reason: 'ownExecution', holder: { executionId: result.executionId } }]);

    const rounds = workflow([loop('Loop'), section('={{ $json.key }}')], 'Start -> Loop', 'Loop:Loop -> Once -> Loop', 'Once:Busy -> Loop');
    const other = b.key();
    const looped = await b.engine.run(rounds, { items: [{ json: { key: other } }, { json: { key: other } }] });
    expect(looped.locks('Once', 'Acquired')).toMatchObject([{ acquired: true, key: other }]);
    expect(looped.locks('Once', 'Busy')).toMatchObject([{ reason: 'ownExecution', key: other, holder: { executionId: looped.executionId } }]);
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

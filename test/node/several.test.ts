import { until } from '../../scripts/lib/wait';
import { useBed } from './harness/bed';
import { engineVersions } from './harness/engine';
import { acquire as outliving, call, careful, heartbeat, hold, named, release, replace, runWorkflow, steal, wait, workflow } from './harness/workflow';

const { acquire } = careful;

interface Several {
  key: string;
  keys: string[];
  lockId: string;
  fencingTokens: Record<string, number>;
  locks: Array<{ key: string; lockId: string; fencingToken: number }>;
}

describe.each(engineVersions)('several keys at once on n8n-core %s', (version) => {
  const bed = useBed(version);
  const two = () => [bed.key(), bed.key()].sort();
  const list = (keys: string[]) => `={{ ${JSON.stringify(keys)} }}`;

  it('are one lock on the item, with a token for each; Heartbeat and Release treat them as one', async () => {
    const keys = two();
    const flow = workflow(
      [acquire('Acquire', { key: list([...keys].reverse()) }), heartbeat('Heartbeat', {}), hold('Work'), release('Release', {})],
      'Start -> Acquire -> Heartbeat -> Work -> Release',
    );
    const run = bed.engine.start(flow);
    await run.reached('Work', 'holding');
    expect(await bed.redis.exists(...keys)).toBe(2);
    await run.letGo('Work');
    const result = await run.finished;
    const [lock] = result.locks('Acquire', 'Acquired') as unknown as Several[];
    expect(lock).toMatchObject({ acquired: true, keys, acquiredBy: 'Acquire', queueLength: 0 });
    expect(lock).not.toHaveProperty('key');
    expect(lock.locks.map(({ key }) => key)).toEqual(keys);
    expect(lock.fencingTokens).toEqual(Object.fromEntries(lock.locks.map(({ key, fencingToken }) => [key, fencingToken])));
    expect(new Set(lock.locks.map(({ lockId }) => lockId)).size).toBe(2);
    expect(result.locks('Heartbeat', 'Alive')).toMatchObject([{ alive: true, renewed: 2, lockId: lock.lockId, keys, fencingTokens: lock.fencingTokens }]);
    expect(result.locks('Release', 'Released')).toMatchObject([{ released: true, lockId: lock.lockId, keys }]);
    expect(await bed.redis.exists(...keys)).toBe(0);
  });

  it('may be lines, and count once', async () => {
    const keys = two();
    const flow = workflow([acquire('Acquire', { key: [...keys, keys[0]].join('\n') }), release('Release', {})], 'Start -> Acquire -> Release');
    const result = await bed.engine.run(flow);
    expect(result.locks('Acquire', 'Acquired')).toMatchObject([{ keys }]);
    expect(result.locks('Release', 'Released')).toMatchObject([{ released: true, keys }]);
  });

  it('are all busy where one is, and it is said which and who has it', async () => {
    const keys = two();
    const other = await bed.engine.run(workflow([outliving('Other', { key: keys[1] })], 'Start -> Other'));
    const result = await bed.engine.run(workflow([acquire('Acquire', { key: list(keys) })], 'Start -> Acquire -> Work'));
    expect(result.ran('Work')).toBe(false);
    expect(result.locks('Acquire', 'Busy')).toMatchObject([
      { acquired: false, reason: 'held', key: keys[1], keys, holder: { executionId: other.executionId } },
    ]);
    expect(await bed.redis.exists(keys[0])).toBe(0);
  });

  it('are waited for under one deadline, and given back when it is over', async () => {
    const keys = two();
    await bed.engine.run(workflow([outliving('Other', { key: keys[1] })], 'Start -> Other'));
    const result = await bed.engine.run(workflow([acquire('Acquire', { key: list(keys), whenBusy: 'wait', maxWait: 0.3 })], 'Start -> Acquire'));
    expect(result.locks('Acquire', 'Timed Out')).toMatchObject([{ acquired: false, reason: 'timedOut', key: keys[1], keys }]);
    expect(await bed.redis.exists(keys[0])).toBe(0);
  });

  it('are waited for, entered, renewed together, and end with the execution', async () => {
    const keys = two();
    const first = bed.engine.start(workflow([acquire('First', { key: keys[1] }), hold('Hold')], 'Start -> First -> Hold'));
    await first.reached('Hold', 'holding');
    const run = bed.engine.start(workflow([acquire('Acquire', { key: list(keys), ttl: 1, whenBusy: 'wait', maxWait: 20 }), hold('Work')], 'Start -> Acquire -> Work'));
    await until('it to stand in line', async () => (await bed.redis.zcard(`{${keys[1]}}:rl:line`)) === 1);
    await first.letGo('Hold');
    await run.reached('Work', 'holding');
    const began = Date.now();
    await until('two TTLs', async () => {
      expect(await bed.redis.exists(...keys)).toBe(2);
      return Date.now() - began > 2000;
    });
    await run.letGo('Work');
    await run.finished;
    expect(await bed.redis.exists(...keys)).toBe(0);
  });

  it('are lost when one is', async () => {
    const keys = two();
    const run = bed.engine.start(
      workflow([acquire('Acquire', { key: list(keys) }), hold('Work'), heartbeat('Heartbeat', {}), release('Release', {})], 'Start -> Acquire -> Work -> Heartbeat', 'Heartbeat:Lost -> Release'),
    );
    await run.reached('Work', 'holding');
    await bed.redis.del(keys[1]);
    const other = await bed.engine.run(workflow([outliving('Other', { key: keys[1] })], 'Start -> Other'));
    await run.letGo('Work');
    const result = await run.finished;
    expect(result.locks('Heartbeat', 'Lost')).toMatchObject([{ alive: false, key: keys[1], reason: 'keyDeleted' }]);
    expect(result.locks('Release', 'Not Held')).toMatchObject([{ released: false, overlapped: true, keys, holder: { executionId: other.executionId } }]);
    expect(await bed.redis.exists(keys[0])).toBe(0);
  });

  it.each([
    ['automatically, with nothing on the item', {}, false],
    ['by the node', { target: 'node', acquiredBy: 'Acquire' }, false],
    ['all of the execution', { target: 'execution' }, false],
    ['by lock id', { target: 'lockId', lockId: "={{ $('Acquire').first().json.lock.lockId }}" }, false],
    ['by their keys', { target: 'key' }, true],
  ])('are released %s', async (_, target, byKey) => {
    const keys = two();
    const flow = workflow(
      [acquire('Acquire', { key: list(keys) }), replace('Request', {}), release('Release', { ...target, ...(byKey && { key: list(keys) }) })],
      'Start -> Acquire -> Request -> Release',
    );
    const result = await bed.engine.run(flow);
    expect(result.locks('Release', 'Released')).toMatchObject([{ released: true, keys: expect.arrayContaining(keys) }]);
    expect(await bed.redis.exists(...keys)).toBe(0);
  });

  it('are the same lock again for the node that took them, and another hold for another node', async () => {
    const keys = two();
    const flow = workflow(
      [acquire('A', { key: list(keys) }), acquire('B', { key: list(keys) }), release('Release B', {}), hold('Work'), release('Release A', {})],
      'Start -> A -> B -> Release B -> Work -> Release A',
    );
    const run = bed.engine.start(flow);
    await run.reached('Work', 'holding');
    expect(await bed.redis.exists(...keys)).toBe(2);
    await run.letGo('Work');
    const result = await run.finished;
    expect(result.locks('B', 'Acquired')).toMatchObject([{ reentrant: true, keys, outer: { acquiredBy: 'A' } }]);
    expect(result.locks('Release B', 'Released')).toMatchObject([{ holdsLeft: 1, outer: { acquiredBy: 'A' } }]);
    expect(result.locks('Release A', 'Released')).toMatchObject([{ released: true, keys }]);
    expect(await bed.redis.exists(...keys)).toBe(0);
  });

  it('may have one that the execution holds already; it keeps that where the others can not be had', async () => {
    const keys = two();
    const third = bed.key();
    await bed.engine.run(workflow([outliving('Other', { key: third })], 'Start -> Other'));
    const flow = workflow(
      [acquire('One', { key: keys[0] }), acquire('All', { key: list(keys) }), acquire('More', { key: list([...keys, third]) }), hold('Work')],
      'Start -> One -> All -> More',
      'More:Busy -> Work',
    );
    const run = bed.engine.start(flow);
    await run.reached('Work', 'holding');
    expect(await bed.redis.exists(...keys)).toBe(2);
    expect(await bed.redis.hget(`{${keys[0]}}:rl:lock`, String((await bed.redis.hkeys(`{${keys[0]}}:rl:lock`)).find((field) => field.startsWith('@'))))).toContain(' 0 One,All ');
    await run.letGo('Work');
    await run.finished;
    expect(await bed.redis.exists(...keys)).toBe(0);
  });

  it('go through a Wait, and are given back behind it', async () => {
    const keys = two();
    const flow = workflow([acquire('Acquire', { key: list(keys) }), wait('Wait'), release('Release', {})], 'Start -> Acquire -> Wait -> Release');
    const suspended = await bed.engine.run(flow);
    expect(suspended.status).toBe('waiting');
    expect(await bed.redis.exists(...keys)).toBe(2);
    const resumed = await bed.engine.resume(flow, suspended);
    expect(resumed.locks('Release', 'Released')).toMatchObject([{ released: true, keys }]);
    expect(await bed.redis.exists(...keys)).toBe(0);
  });

  it('are taken in a sub-workflow for its caller', async () => {
    const keys = two();
    const child = named('child', workflow([acquire('Take', { key: list(keys), ttl: 60, options: { owner: 'caller' } })], 'Start -> Take'));
    const flow = workflow([call('Call', 'child'), heartbeat('Heartbeat', {}), release('Release', {})], 'Start -> Call -> Heartbeat -> Release');
    const result = await bed.engine.run(flow, { workflows: [child] });
    expect(result.locks('Heartbeat', 'Alive')).toMatchObject([{ alive: true, renewed: 2, keys }]);
    expect(result.locks('Release', 'Released')).toMatchObject([{ released: true, keys }]);
    expect(await bed.redis.exists(...keys)).toBe(0);
  });

  it('are Busy at once where the calling execution has one', async () => {
    const keys = two();
    const child = named('child', workflow([acquire('Take', { key: list(keys), whenBusy: 'wait', maxWait: 60 })], 'Start -> Take -> Work', 'Take:Busy -> Busy'));
    const run = bed.engine.start(workflow([acquire('Acquire', { key: keys[1] }), call('Call', 'child')], 'Start -> Acquire -> Call'), { workflows: [child] });
    await run.finished;
    expect(run.children[0].result.locks('Take', 'Busy')).toMatchObject([{ reason: 'heldByCaller', key: keys[1], keys }]);
  });

  it('are held while another workflow runs', async () => {
    const keys = two();
    const child = named('child', workflow([hold('Work')], 'Start -> Work'));
    const run = bed.engine.start(workflow([runWorkflow('Run', { key: list(keys), workflowId: { __rl: true, mode: 'id', value: 'child' }, ttl: 60 })], 'Start -> Run'), { workflows: [child] });
    await run.reached('Work', 'holding');
    expect(await bed.redis.exists(...keys)).toBe(2);
    await run.letGo('Work');
    expect((await run.finished).locks('Run', 'Done')).toMatchObject([{ released: true, keys }]);
    expect(await bed.redis.exists(...keys)).toBe(0);
  });

  it('are stolen together, or not at all', async () => {
    const keys = two();
    const gone = await bed.engine.run(workflow([outliving('Gone', { key: keys[0] })], 'Start -> Gone'));
    const own = workflow([steal('Steal', { key: list(keys), stealIf: 'stale', staleAfter: 0.05 }), release('Release', {})], 'Start -> Steal -> Release');
    await new Promise((resolve) => setTimeout(resolve, 60));
    const result = await bed.engine.run(own);
    expect(result.locks('Steal', 'Stolen')).toMatchObject([{ stolen: true, acquired: true, keys, previousHolder: { executionId: gone.executionId } }]);
    expect(result.locks('Release', 'Released')).toMatchObject([{ released: true, keys }]);

    await bed.engine.run(workflow([outliving('Other', { key: keys[1] })], 'Start -> Other'));
    const none = await bed.engine.run(workflow([steal('Steal', { key: list(keys), stealIf: 'stale', staleAfter: 60 })], 'Start -> Steal'));
    expect(none.locks('Steal', 'Not Stolen')).toMatchObject([{ stolen: false, reason: 'notStale', key: keys[1], keys }]);
    expect(await bed.redis.exists(keys[0])).toBe(0);
  });

  it('of several items are taken one after the other; waiting, they are refused', async () => {
    const [a, b, c, d] = [bed.key(), bed.key(), bed.key(), bed.key()];
    const items = [{ json: { keys: [a, b] } }, { json: { keys: [c, d] } }];
    const result = await bed.engine.run(workflow([acquire('Acquire', { key: '={{ $json.keys }}' }), release('Release', {})], 'Start -> Acquire -> Release'), { items });
    expect(result.locks('Release', 'Released')).toMatchObject([{ released: true }, { released: true }]);
    expect(await bed.redis.exists(a, b, c, d)).toBe(0);
    const waiting = await bed.engine.run(workflow([acquire('Acquire', { key: '={{ $json.keys }}', whenBusy: 'wait' })], 'Start -> Acquire'), { items });
    expect(waiting.status).toBe('error');
    expect(waiting.errorText).toContain('Key (item 0) is a list, and other items of this run have other keys');
    expect(await bed.redis.exists(a, b, c, d)).toBe(0);
  });

  it.each([
    ['={{ [] }}', {}, 'Key (item 0) is an empty list.'],
    ["={{ ['ok', $json.none] }}", {}, 'Key (item 0) is a list, and number 2 of it is empty.'],
    ["={{ ['ok', 'job:undefined'] }}", {}, 'Key (item 0) is a list, and number 2 of it is "job:undefined"'],
    ["={{ ['ok', { a: 1 }] }}", {}, 'Key (item 0) is a list, and number 2 of it is an object'],
    ['one\n\ntwo', {}, 'Key (item 0) has an empty line in it (line 2).'],
    ['one\ntwo\n', {}, 'Key (item 0) has an empty line in it (line 3).'],
    ["={{ Array.from({ length: 101 }, (_, i) => 'k' + i) }}", {}, 'Key (item 0) is a list of 101 keys, and 100 are allowed.'],
    ["={{ ['a', 'b'] }}", { mode: 'shared' }, 'Key (item 0) is a list of 2 keys, which does not go together with Mode: Shared.'],
    ["={{ ['a', 'b'] }}", { maxHolders: 2 }, 'which does not go together with Max Holders.'],
    ["={{ ['a', 'b'] }}", { stealIfStaleAfter: 5 }, 'which does not go together with Steal If Stale After.'],
  ])('refuses %j with %j', async (key, options, message) => {
    const before = await bed.redis.dbsize();
    const result = await bed.engine.run(workflow([acquire('Acquire', { key, options })], 'Start -> Acquire'));
    expect(result.status).toBe('error');
    expect(result.errorText).toContain(message);
    expect(await bed.redis.dbsize()).toBe(before);
  });
});

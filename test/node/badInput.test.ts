import { useBed } from './harness/bed';
import { engineVersions } from './harness/engine';
import {
  acquire,
  acquireOnce,
  careful,
  getStatus,
  heartbeat,
  release,
  runWorkflow,
  steal,
  workflow,
  type Json,
  type NodeSettings,
  type WorkflowNode,
} from './harness/workflow';

/** `=` makes an n8n expression of a parameter: this one gives exactly that value. */
const exactly = (value: unknown) => `={{ ${JSON.stringify(value)} }}`;

describe.each(engineVersions)('bad input on n8n-core %s', (version) => {
  const bed = useBed(version);

  beforeEach(async () => {
    await bed.redis.flushall();
  });

  async function expectRefused(node: WorkflowNode, says: RegExp | string) {
    const result = await bed.engine.run(workflow([node], 'Start -> Lock -> Critical section'));

    expect(result.status).toBe('error');
    expect(result.error?.node).toBe('Lock');
    expect(result.errorText).toMatch(says);
    expect(result.error?.itemIndex).toBe(0);
    expect(result.ran('Critical section')).toBe(false);
    expect(await bed.redis.dbsize()).toBe(0);
  }

  describe('Key', () => {
    it.each([
      ['empty', ''],
      ['blank', '   '],
      ['with a leading blank', ' job'],
      ['with a trailing blank', 'job '],
      ['with a line break at its end', 'job\n'],
      ['with an undefined segment', 'job:undefined'],
      ['with a null segment', 'job:null:lock'],
      ['with a NaN segment', 'NaN-job'],
      ['with an object', 'job:[object Object]'],
      ['with an expression that is no expression', 'job:{{ $json.id }}'],
      ['with a leading =', '=job'],
      ['with a } and no hash tag', 'job}1'],
      ['that is a companion of a lock', '{job}:rl:lock'],
      ['longer than 1024 bytes', 'ä'.repeat(513)],
      ['undefined', undefined],
      ['a number that is none', NaN],
      ['an object', { id: 1 }],
    ])('%s', async (_title, key) => {
      await expectRefused(
        acquire('Lock', { key: key === undefined ? '={{ $json.nothing }}' : exactly(key) }),
        /\bKey\b/,
      );
    });

    it('an expression that was not evaluated', async () => {
      await expectRefused(acquire('Lock', { key: 'job:{{ $json.id }}' }), /\bKey\b/);
    });

    it.each(['=job:{{ $json.id }}', '={{ $json.id }}:job', '=a:{{ $json.id }}:b', '=job:{{ null }}', '=job:{{ 0 / 0 }}', '=job:{{ "" }}'])(
      '%s, whose expression has no value',
      async (key) => {
        await expectRefused(acquire('Lock', { key }), /\bKey \(item 0\) .*(no value|NaN)/);
      },
    );

    it('may leave a part out on purpose', async () => {
      const key = '=job{{ $json.id ? ":" + $json.id : "" }}';
      const result = await bed.engine.run(workflow([acquire('Lock', { key })], 'Start -> Lock'));

      expect(result.locks('Lock', 'Acquired')).toMatchObject([{ acquired: true, key: 'job' }]);
    });

    it.each([
      ['acquireOnce', acquireOnce],
      ['getStatus', getStatus],
      ['runWorkflow', (name: string, parameters: Json) => runWorkflow(name, { workflowId: 'any', ...parameters })],
      ['steal', steal],
    ])('empty, in %s', async (_title, make) => {
      await expectRefused(make('Lock', { key: exactly('') }), /\bKey\b/);
    });

    it.each(['nullable:undefinedness', 'annulled', 'NaNny', 'w4ingest:lock:Folder 1/ä', '{tag}:job', 'job:0'])(
      '%s is fine',
      async (key) => {
        const result = await bed.engine.run(workflow([acquire('Lock', { key: exactly(key) })], 'Start -> Lock'));

        expect(result.errorText).toBe('undefined\n');
        expect(result.locks('Lock', 'Acquired')).toMatchObject([{ acquired: true, key }]);
      },
    );

    it('a number is its text', async () => {
      const result = await bed.engine.run(workflow([acquire('Lock', { key: '={{ 42 }}' })], 'Start -> Lock'));

      expect(result.locks('Lock', 'Acquired')).toMatchObject([{ acquired: true, key: '42' }]);
    });

    it('that is the bare execution id excludes nobody, which a hint says', async () => {
      const result = await bed.engine.run(
        workflow([acquire('Lock', { key: '={{ $execution.id }}' })], 'Start -> Lock'),
      );

      expect(result.counts('Lock')).toEqual([1, 0, 0]);
      expect(
        result
          .runs('Lock')[0]
          .hints.map(({ message }) => message)
          .join(),
      ).toMatch(/execution/i);
    });
  });

  describe('other parameters of Acquire', () => {
    it.each([
      ['TTL: no number', { ttl: exactly('soon') }, /\bTTL\b/],
      ['TTL: zero', { ttl: 0 }, /\bTTL\b/],
      ['TTL: negative', { ttl: -5 }, /\bTTL\b/],
      ['TTL: below a second', { ttl: 0.5 }, /\bTTL\b/],
      ['TTL: above 30 days', { ttl: 30 * 86_400 + 1 }, /\bTTL\b/],
      ['TTL: undefined', { ttl: '={{ $json.nothing }}' }, /\bTTL\b/],
      ['Max Wait: no number', { whenBusy: 'wait', maxWait: exactly('long') }, /\bMax Wait\b/],
      ['Max Wait: negative', { whenBusy: 'wait', maxWait: -1 }, /\bMax Wait\b/],
      ['Output Field: error', { options: { outputField: 'error' } }, /\bOutput Field\b/],
      ['Output Field: message', { options: { outputField: 'message' } }, /\bOutput Field\b/],
      ['Output Field: details', { options: { outputField: 'details' } }, /\bOutput Field\b/],
      ['Output Field: no identifier', { options: { outputField: 'a b' } }, /\bOutput Field\b/],
      ['Note: longer than what fits', { options: { note: 'x'.repeat(5000) } }, /\bNote\b/],
      ['On Timeout: unknown', { whenBusy: 'wait', options: { onTimeout: exactly('go') } }, /On Timeout \(item 0\) is "go", which this version does not know/],
      ['Steal If Stale After: negative', { options: { stealIfStaleAfter: -1 } }, /\bSteal If Stale After\b/],
    ])('%s', async (_title, parameters, says) => {
      await expectRefused(acquire('Lock', { key: 'job', ...parameters }), says);
    });
  });

  describe('other operations', () => {
    it.each([
      ['Heartbeat: empty Key', heartbeat('Lock', { target: 'key', key: exactly('') }), /\bKey\b/],
      ['Heartbeat: empty Lock ID', heartbeat('Lock', { target: 'lockId', lockId: exactly('') }), /\bLock ID\b/],
      ['Heartbeat: negative TTL', heartbeat('Lock', { target: 'key', key: 'job', ttl: -1 }), /\bTTL\b/],
      ['Release: empty Key', release('Lock', { target: 'key', key: ' ' }), /\bKey\b/],
      ['Release: empty Lock ID', release('Lock', { target: 'lockId', lockId: exactly('') }), /\bLock ID\b/],
      ['Release: no node named', release('Lock', { target: 'node', acquiredBy: exactly('') }), /\bAcquire Node\b/],
      [
        'Steal: no fencing token',
        steal('Lock', { key: 'job', stealIf: 'fencingToken', fencingToken: exactly('abc') }),
        /\bFencing Token\b/,
      ],
      ['Steal: TTL', steal('Lock', { key: 'job', ttl: 0 }), /\bTTL\b/],
      ['Steal: Stale After', steal('Lock', { key: 'job', stealIf: 'stale', staleAfter: -1 }), /\bStale After\b/],
    ])('%s', async (_title, node, says) => {
      await expectRefused(node, says);
    });
  });

  describe('who may hold the lock at once, and who is served', () => {
    const waits = { whenBusy: 'wait', maxWait: 30 };
    const bounds = (value: string) => `Max Holders (item 0) must be a whole number from 1 to 1000, not ${value}.`;
    const seconds = (label: string, least: number, value: string) => `${label} (item 0) must be a number of seconds from ${least} to 2592000, not ${value}.`;
    const unknown = (label: string, value: string) => `${label} (item 0) is ${value}, which this version does not know. Choose one from the list.`;
    const newest = (options: Json) => ({ ...waits, options: { waitingPolicy: 'newest', ...options } });
    const rows: Array<[string, Json, string]> = [
      ['Max Holders: none', { options: { maxHolders: 0 } }, bounds('0')],
      ['Max Holders: negative', { options: { maxHolders: -3 } }, bounds('-3')],
      ['Max Holders: a fraction', { options: { maxHolders: 2.5 } }, bounds('2.5')],
      ['Max Holders: too many', { options: { maxHolders: 1001 } }, bounds('1001')],
      ['Max Holders: a word', { options: { maxHolders: exactly('many') } }, bounds('"many"')],
      ['Max Holders: an empty text', { options: { maxHolders: exactly('') } }, bounds('""')],
      ['Max Holders: a blank', { options: { maxHolders: exactly(' ') } }, bounds('" "')],
      ['Max Holders: a truth', { options: { maxHolders: exactly(true) } }, bounds('true')],
      ['Max Holders: null', { options: { maxHolders: exactly(null) } }, bounds('null')],
      ['Mode: unknown', { options: { mode: exactly('write') } }, unknown('Mode', '"write"')],
      [
        'Mode: Shared, with Max Holders',
        { options: { mode: 'shared', maxHolders: 2 } },
        "Mode (item 0) is Shared, which lets in any number, so it can't go together with Max Holders 2. Remove one of the two.",
      ],
      ['Waiting: unknown', { ...waits, options: { waitingPolicy: exactly('last') } }, unknown('Waiting', '"last"')],
      [
        'Waiting: Only the Newest, without waiting',
        { options: { waitingPolicy: 'newest' } },
        'Waiting (item 0) is Only the Newest, but When Busy does not wait. Choose When Busy: Wait in Line.',
      ],
      ['Settle Time: negative', newest({ settleTime: -1 }), seconds('Settle Time', 0, '-1')],
      ['Settle Time: a word', newest({ settleTime: exactly('soon') }), seconds('Settle Time', 0, '"soon"')],
      [
        'Settle Time: in turn',
        { ...waits, options: { settleTime: 2 } },
        'Settle Time (item 0) is for Waiting: Only the Newest. Choose that, or remove Settle Time and Settle At Most.',
      ],
      [
        'Settle Time: no shorter than Max Wait',
        newest({ settleTime: 30 }),
        'Settle Time (item 0) must be shorter than Max Wait (30 s): else every item times out. Wait longer.',
      ],
      ['Settle At Most: negative', newest({ settleTime: 1, settleAtMost: -1 }), seconds('Settle At Most', 0, '-1')],
      ['Settle At Most: alone', newest({ settleAtMost: 5 }), 'Settle At Most (item 0) needs a Settle Time. Set one, or remove it.'],
      [
        'Settle At Most: shorter than Settle Time',
        newest({ settleTime: 5, settleAtMost: 4 }),
        'Settle At Most (item 0) must not be shorter than Settle Time (5 s).',
      ],
    ];

    it.each(rows)('%s', async (_title, parameters, says) => {
      await expectRefused(acquire('Lock', { key: 'job', ...parameters }), says);
    });

    it.each(rows)('%s, in Run Workflow', async (_title, parameters, says) => {
      await expectRefused(runWorkflow('Lock', { key: 'job', workflowId: 'any', ...parameters }), says);
    });

    it('a number that is a text is fine', async () => {
      const result = await bed.engine.run(workflow([acquire('Lock', { key: 'job', options: { maxHolders: exactly('2') } })], 'Start -> Lock'));

      expect(result.locks('Lock', 'Acquired')).toMatchObject([{ acquired: true, holders: 1, maxHolders: 2, freePermits: 1 }]);
    });
  });

  describe('Acquire Once', () => {
    const days = (value: string) => `Remembered as Done For (item 0) must be a number of seconds from 1 to 2592000, not ${value}.`;

    it.each([
      ['TTL', { ttl: 0 }, 'TTL (item 0) must be a number of seconds from 1 to 2592000, not 0.'],
      ['Max Wait', { whenBusy: 'wait', maxWait: -1 }, 'Max Wait (item 0) must be a number of seconds from 0 to 2592000, not -1.'],
      ['Remembered as Done For: zero', { options: { rememberDone: 0 } }, days('0')],
      ['Remembered as Done For: negative', { options: { rememberDone: -1 } }, days('-1')],
      ['Remembered as Done For: above 30 days', { options: { rememberDone: 30 * 86_400 + 1 } }, days('2592001')],
      ['Remembered as Done For: a word', { options: { rememberDone: exactly('a day') } }, days('"a day"')],
      ['Remembered as Done For: null', { options: { rememberDone: exactly(null) } }, days('null')],
      [
        'When the Key Is Missing: unknown',
        { options: { whenKeyMissing: exactly('drop') } },
        'When the Key Is Missing (item 0) is "drop", which this version does not know. Choose one from the list.',
      ],
      [
        'On Timeout: Continue Without the Lock, which is none of its own',
        { whenBusy: 'wait', options: { onTimeout: exactly('continue') } },
        'On Timeout (item 0) is "continue", which this operation does not know. Choose one from the list.',
      ],
      // No key is one thing, a bad key another.
      ['Key: an object', { key: exactly({ id: 1 }), options: { whenKeyMissing: 'process' } }, /^Key \(item 0\) is an object.* such as/],
      ['Key: a line break', { key: exactly('a\nb'), options: { whenKeyMissing: 'process' } }, /^Key \(item 0\) has a line break.* for example/],
    ])('%s', async (_title, parameters: Json, says) => {
      await expectRefused(acquireOnce('Lock', { key: 'job', ...parameters }), says);
    });

    it('refuses equal keys that are to be remembered for different times', async () => {
      const options = { rememberDone: '={{ $json.seconds }}' };
      const result = await bed.engine.run(workflow([acquireOnce('Lock', { key: 'job', options })], 'Start -> Lock'), {
        items: [{ json: { seconds: 60 } }, { json: { seconds: 90 } }],
      });

      expect(result.error).toMatchObject({
        itemIndex: 1,
        message: 'Remembered as Done For (item 1) is 90 s, but item 0 asks for the same key "job" with 60 s. Give equal keys the same Remembered as Done For.',
      });
      expect(await bed.redis.dbsize()).toBe(0);
    });
  });

  it('Run Workflow never runs it without the lock', async () => {
    const parameters = { key: 'job', workflowId: 'any', whenBusy: 'wait', options: { onTimeout: exactly('continue') } };
    await expectRefused(runWorkflow('Lock', parameters), 'On Timeout (item 0) is "continue", which this operation does not know. Choose one from the list.');
  });

  describe('what Release leaves', () => {
    it.each([
      ['no JSON', 'c-1', 'Result (item 0) is not JSON: "c-1". Write a text in quotation marks, or an object such as { "id": 7 }.'],
      ['cut short', '{ "id": ', 'Result (item 0) is not JSON: "{ "id": ". Write a text in quotation marks, or an object such as { "id": 7 }.'],
      [
        'longer than what fits',
        JSON.stringify('ä'.repeat(2048)),
        'Result (item 0) has 4098 bytes as JSON, and 4096 are allowed. Leave an ID there, and what it stands for where it is.',
      ],
      ['an object that is larger than what fits', exactly({ text: 'x'.repeat(5000) }), /^Result \(item 0\) has 5011 bytes as JSON/],
    ])('%s: refused, with nothing released', async (_title, doneResult, says) => {
      await expectRefused(release('Lock', { options: { doneResult } }), says);

      const node = release('Lock', { options: { doneResult } }, { onError: 'continueErrorOutput' });
      const once = acquireOnce('Once', { key: 'job' });
      const result = await bed.engine.run(workflow([once, node], 'Start -> Once -> Lock'));
      expect(result.counts('Lock')).toEqual([0, 0, 1]);
      expect(await bed.redis.exists('job')).toBe(1);
      expect(await bed.redis.hexists('{job}:rl:lock', 'done')).toBe(0);
    });

    it('a result of just the size that fits is handed out whole', async () => {
      const text = 'ä'.repeat(2047);
      const node = release('Lock', { options: { doneResult: JSON.stringify(text) } });
      await bed.engine.run(workflow([careful.acquireOnce('Once', { key: 'job' }), node], 'Start -> Once -> Lock'));
      const again = await bed.engine.run(workflow([acquireOnce('Once', { key: 'job' })], 'Start -> Once'));

      expect(again.locks('Once', 'Done Before')).toMatchObject([{ done: { result: text } }]);
    });
  });

  it('names the item, and locks nothing for the items before it', async () => {
    const result = await bed.engine.run(
      workflow([acquire('Lock', { key: '={{ "job:" + $json.id }}' })], 'Start -> Lock'),
      {
        items: [{ json: { id: 1 } }, { json: { id: 2 } }, { json: {} }],
      },
    );

    expect(result.error?.itemIndex).toBe(2);
    expect(result.errorText).toMatch(/undefined/);
    expect(await bed.redis.dbsize()).toBe(0);
  });

  it('a field of the user under the name of the output field is not overwritten', async () => {
    const result = await bed.engine.run(workflow([acquire('Lock', { key: 'job' })], 'Start -> Lock'), {
      items: [{ json: { lock: 'mine' } }],
    });

    expect(result.errorText).toMatch(/\bOutput Field\b/);
    expect(result.error?.itemIndex).toBe(0);
    expect(await bed.redis.dbsize()).toBe(0);
  });

  it('a required parameter that was left empty is refused by n8n itself', async () => {
    const run = bed.engine.run(workflow([acquire('Lock', { key: '' })], 'Start -> Lock'));
    await expect(run).rejects.toThrow(/has issues/);
  });

  describe('a value of another type under the key', () => {
    it.each([
      ['list', ['rpush', 'job', 'a']],
      ['hash', ['hset', 'job', 'a', '1']],
      ['stream', ['xadd', 'job', '1-1', 'a', '1']],
      ['set', ['sadd', 'job', 'a']],
      ['zset', ['zadd', 'job', '1', 'a']],
    ])('%s is named and left alone, by every operation', async (type, [command, ...args]) => {
      await bed.redis.call(command, ...args);
      const before = await bed.redis.dumpBuffer('job');

      const takers = [acquire, acquireOnce, (name: string, parameters: Json) => runWorkflow(name, { workflowId: 'any', ...parameters })].flatMap((make) => [
        make('Lock', { key: 'job' }),
        make('Lock', { key: 'job', whenBusy: 'wait' }),
      ]);
      for (const node of [...takers, getStatus('Lock', { key: 'job' }), steal('Lock', { key: 'job', stealIf: 'any' })]) {
        const result = await bed.engine.run(workflow([node], 'Start -> Lock'));
        expect(result.status).toBe('error');
        expect(result.errorText).toContain(type);
        expect(result.errorText).toContain('job');
      }
      for (const node of [
        heartbeat('Lock', { target: 'key', key: 'job' }),
        release('Lock', { target: 'key', key: 'job' }),
      ]) {
        expect((await bed.engine.run(workflow([node], 'Start -> Lock'))).counts('Lock')[0] ?? 0).toBe(0);
      }
      expect(await bed.redis.dumpBuffer('job')).toEqual(before);
      expect(await bed.redis.dbsize()).toBe(1);
    });

    it('fails its own item alone under Continue, and gives back what the run had taken when it stops', async () => {
      await bed.redis.hset('b', 'in', 'the way');
      const items = [{ json: { key: 'a' } }, { json: { key: 'b' } }];
      const take = async (settings: NodeSettings) =>
        await bed.engine.run(workflow([acquire('Lock', { key: '={{ $json.key }}' }, settings)], 'Start -> Lock'), {
          items,
        });

      const stopped = await take({});
      expect(stopped.error?.itemIndex).toBe(1);
      expect(await bed.redis.exists('a')).toBe(0);

      const continued = await take({ onError: 'continueErrorOutput' });
      expect(continued.counts('Lock')).toEqual([1, 0, 0, 1]);
      expect(await bed.redis.exists('a')).toBe(1);
    });

    it('text is respected as a lock of somebody else', async () => {
      await bed.redis.set('job', 'hello');
      const result = await bed.engine.run(workflow([acquire('Lock', { key: 'job' })], 'Start -> Lock'));

      expect(result.counts('Lock')).toEqual([0, 1, 0]);
      expect(await bed.redis.get('job')).toBe('hello');
    });
  });
});

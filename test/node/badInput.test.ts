import { useBed } from './harness/bed';
import { engineVersions } from './harness/engine';
import {
  acquire,
  getStatus,
  heartbeat,
  release,
  steal,
  workflow,
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

  async function expectRefused(node: WorkflowNode, says: RegExp) {
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
      ['getStatus', getStatus],
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

      for (const node of [acquire('Lock', { key: 'job' }), steal('Lock', { key: 'job', stealIf: 'any' })]) {
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

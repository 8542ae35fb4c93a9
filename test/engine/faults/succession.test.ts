import { newKey, take, useBed, useProxy } from '../support/bed';
import { betweenCommands } from '../support/betweenCommands';

/** A late holder, whose successor is in: whatever it does is checked and done in one step. */
describe('a lock that has a new holder', () => {
  const bed = useBed();
  const proxy = useProxy(bed);
  // The command is held back for as long as the old lease lasts, which is no outage.
  const late = () => bed.locks({ commandTimeoutMs: 30_000 }, { url: proxy.url });
  const execution = { instanceId: 'i', executionId: 'late' };
  const successor = (key: string) => take(bed.locks(), key, { waitMs: 15_000 });

  it.each(['release', 'heartbeat'] as const)('F35: is left alone by a %s, at whatever moment the lease ran out', async (what) => {
    const locks = late();
    await (await take(locks, newKey())).release();
    const held = await betweenCommands(proxy, {
      before: async () => {
        const lock = await take(locks, newKey(), { ttlMs: 300 });
        return { key: lock.key, call: () => lock[what]() };
      },
      meanwhile: successor,
      after: async (result, next, key) => {
        const by = { fencingToken: next.fencingToken, owner: {} };
        expect(result).toMatchObject({ outcome: what === 'release' ? 'notHeld' : 'lost', reason: 'expired', by });
        expect(await bed.redis.get(key)).toBe(String(next.fencingToken));
        expect(await next.heartbeat()).toMatchObject({ outcome: 'alive', revived: false });
        expect((await next.release()).outcome).toBe('released');
      },
    });
    expect(held).toBeGreaterThan(0);
  }, 40_000);

  it.each(['its lease ran out', 'an operator deleted the key'])('F31: is left alone when all that an execution holds is released, after %s', async (how) => {
    const locks = bed.locks();
    const [lost, kept] = [newKey(), newKey()];
    await take(locks, lost, { ttlMs: how.startsWith('its') ? 200 : 60_000, owner: execution });
    await take(locks, kept, { ttlMs: 60_000, owner: execution });
    if (how.startsWith('an')) await bed.redis.del(lost);
    const next = await successor(lost);

    const outcomes = await bed.locks().releaseExecution(execution);
    expect(Object.fromEntries(outcomes.map(({ key, outcome }) => [key, outcome]))).toEqual({ [lost]: 'notHeld', [kept]: 'released' });
    expect(await bed.redis.get(lost)).toBe(String(next.fencingToken));
    expect((await next.heartbeat()).outcome).toBe('alive');
    expect(await bed.redis.exists(kept)).toBe(0);
  }, 20_000);

  it('F31: is left alone when it enters while all that an execution holds is being released', async () => {
    const locks = late();
    const held = await betweenCommands(proxy, {
      before: async () => {
        const { key } = await take(locks, newKey(), { ttlMs: 300, owner: execution });
        // It makes the list of what is held outlive the lease.
        await take(locks, newKey(), { ttlMs: 60_000, owner: execution });
        return { key, call: () => locks.releaseExecution(execution) };
      },
      meanwhile: successor,
      after: async (_, next, key) => {
        expect(await bed.redis.get(key)).toBe(String(next.fencingToken));
        expect((await next.heartbeat()).outcome).toBe('alive');
      },
    });
    expect(held).toBeGreaterThan(0);
  }, 40_000);
});

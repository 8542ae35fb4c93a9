import assert from 'node:assert/strict';
import type { Channel, Model, StealIf } from './model';
import { KEEP, by, from, inTheWay, newAsk, robbedOf, same, step, told, type Pick, type Ways } from './step';
import type { Handle, World } from './world';

/** Steps of processes that run: what is done with a lock that is held, and with that of another. */

const ofHandle = (text: string, pick: Pick, run: (model: Model, world: World, handle: Handle) => Promise<void>) =>
  step(`${text} ${pick}`, async (model, world) => {
    const handle = from(world.handles, pick);
    if (handle) await run(model, world, handle);
  });

export const heartbeat = (pick: Pick, ttl: number) =>
  ofHandle(`heartbeat of ${ttl || 'the same ttl'} for handle`, pick, async (model, world, { lock, id, hold }) => {
    const token = world.number(lock.fencingToken);
    const real = await lock.heartbeat(ttl || undefined);
    const expected = model.heartbeat(id, token, hold, ttl);
    if (real.outcome === 'lost') same({ outcome: 'lost', reason: real.reason, by: by(world, real) }, expected);
    else {
      const { outcome, fencingToken, ttlMs, revived, keyTtlShortened } = real;
      same({ outcome, token: world.number(fencingToken), ttl: ttlMs, revived, shortened: keyTtlShortened !== undefined }, expected);
    }
  });

/** @param done that it was done is left behind, with a result or without */
export const release = (pick: Pick, done: 'no' | 'done' | 'with a result') =>
  ofHandle(done === 'no' ? 'release of handle' : `release, ${done}, of handle`, pick, async (model, world, { lock, id, hold }) => {
    const token = world.number(lock.fencingToken);
    const result = done === 'with a result' ? { of: id } : undefined;
    const real = await lock.release(done === 'no' ? undefined : { doneForMs: KEEP, ...(result && { result }) });
    const expected = model.release(id, token, hold, done === 'no' ? undefined : { result });
    if (real.outcome === 'notHeld') same({ outcome: 'notHeld', reason: real.reason, by: by(world, real) }, expected);
    else same({ ...real }, expected);
  });

export const steal = (ways: Ways, how: Exclude<StealIf, object> | 'fencingToken', pick: Pick) =>
  step(`${ways.channel} steals if ${how} ${pick}, ${told(ways)}`, async (model, world) => {
    const seen = world.number(from(world.handles, pick)?.lock.fencingToken ?? 0);
    if (how === 'fencingToken' && !seen) return;
    const ask = newAsk(world, { ...ways, once: false }, false);
    const condition = how === 'fencingToken' ? { fencingToken: world.token(seen) } : how === 'silent' ? 'stale' : how;
    const result = await world.locks(ways.channel).steal(world.key, { ...world.options(ask), if: condition, ...(how === 'silent' && { staleMs: 50_000 }) });
    await world.learn();
    const meant: StealIf = how === 'fencingToken' ? { fencingToken: seen } : how;
    if (result.outcome === 'notStolen') {
      same({ outcome: 'notStolen', reason: result.reason, ...inTheWay(world, result) }, model.steal(ask, meant));
      return;
    }
    const robbed = robbedOf(world, result.lock.grant.robbed);
    const expected = model.steal(ask, meant, robbed);
    world.keep(result.lock, ask);
    same({ outcome: 'stolen', token: world.number(result.lock.fencingToken), robbed }, expected);
  });

export const status = (channel: Channel) =>
  step(`${channel} asks for the status`, async (model, world) => {
    const { state, holders, queue, done } = await world.locks(channel).status(world.key);
    const foreign = holders.some((holder) => 'foreign' in holder);
    const tokens = holders.map((holder) => ('foreign' in holder ? 0 : world.number(holder.fencingToken)));
    const isDone = model.done !== undefined && !model.done.over;
    const gone = model.value === undefined;
    const expected = model.foreign ? [0] : gone ? [] : model.living.map(({ token }) => token);
    const stale = !model.foreign && !gone && model.living.some(({ aged }) => aged);
    const kind = model.foreign ? (model.keyTtl === 'none' ? 'noTtl' : 'foreign') : expected.length === 0 ? (isDone ? 'doneMark' : 'free') : stale ? 'stale' : 'held';
    const handing = model.members.some(({ given, ranOut }) => given && !ranOut);
    assert.deepEqual(
      { foreign, tokens, queue, state: handing ? kind : state, done: done && world.number(done.fencingToken) },
      { foreign: model.foreign, tokens: expected, queue: model.line.length, state: kind, done: isDone ? model.done?.token : undefined },
    );
  });

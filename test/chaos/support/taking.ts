import assert from 'node:assert/strict';
import type { Busy, TimedOut } from '../../../engine';
import type { Answer, Ask, Channel, Model } from './model';
import { KEEP, from, inTheWay, newAsk, otherMode, robbedOf, same, step, told, type Pick, type Ways } from './step';
import { RENEW, TTL, type Parked, type World } from './world';

/** Steps of processes that run: taking the lock, waiting for it, and going away. */

async function failFast(model: Model, world: World, ask: Ask, stealAfter: boolean): Promise<void> {
  const result = await world.acquire(ask, stealAfter ? { stealIfStaleMs: 50_000 } : {}).catch(otherMode);
  await world.learn();
  if (result.outcome !== 'acquired') {
    const out = result.outcome === 'otherMode' ? result : world.out(result);
    if (out) return same(out, model.acquire(ask, 'no', 0, stealAfter));
    assert.equal(result.outcome, 'busy');
    same({ outcome: 'busy', reason: (result as Busy).reason, ...inTheWay(world, result as Busy) }, model.acquire(ask, 'no', 0, stealAfter));
    return;
  }
  const { again, robbed } = result.lock.grant;
  const victim = robbedOf(world, robbed);
  const expected = model.acquire(ask, 'no', 0, stealAfter, victim);
  world.keep(result.lock, ask);
  same({ outcome: 'acquired', token: world.number(result.lock.fencingToken), ...(again && { again }), ...(victim && { robbed: victim }) }, expected);
}

export const take = (ways: Ways, stealAfter: boolean) =>
  step(`${ways.channel} acquires${stealAfter ? ', from a stale holder too' : ''}, ${told(ways)}`, (model, world) =>
    failFast(model, world, newAsk(world, ways, false), stealAfter),
  );

/** @param limit 0 = the same as before */
export const takeAgain = (pick: Pick, hold: string[], channel: Channel, limit: number) =>
  step(`${channel} acquires again under the id of ${pick} ${hold}${limit ? ` limit ${limit}` : ''}`, async (model, world) => {
    const known = [...world.handles, ...[...world.ghosts.values()].map(({ ask }) => ask)];
    const old = from(known, pick);
    if (old) await failFast(model, world, { id: old.id, channel, limit: limit || old.limit, ttl: TTL, holds: [...hold], once: false, newest: false, settles: false }, false);
  });

/** @param other nothing = it is the only key of the list; else one is taken that comes behind it, so that it is given back */
export const takeAll = (ways: Ways, other: 'nothing' | 'taken') =>
  step(`${ways.channel} acquires all of a list, where of others ${other} is there`, async (model, world) => {
    const id = world.newId(ways.channel);
    const ask: Ask = { id: `${id}.0`, channel: ways.channel, limit: 1, ttl: TTL, holds: [], once: false, newest: false, settles: false };
    const behind = `${world.key}:other`;
    if (other === 'taken') await world.redis.set(behind, 'x', 'PX', TTL);
    const keys = other === 'taken' ? [behind, world.key] : [world.key];
    const result = await world.locks(ways.channel).acquireAll(keys, { ttlMs: TTL, lockId: id, owner: world.owner(id), renewEveryMs: RENEW });
    await world.redis.del(behind);
    await world.learn();
    const expected = model.acquire(ask, 'no', 0);
    if (result.outcome === 'acquired') {
      world.keep(result.locks[0]!, ask);
      return same({ outcome: 'acquired', token: world.number(result.locks[0]!.fencingToken) }, expected);
    }
    const { key, outcome, reason } = result as Busy & { key: string };
    if (key === world.key) return same({ outcome, reason, ...inTheWay(world, result) }, expected);
    same({ key, outcome, reason, held: expected.outcome }, { key: behind, outcome: 'busy', reason: 'foreign', held: 'acquired' });
    model.release(ask.id, 0, []);
  });

export async function ofParked(world: World, parked: Parked, expected: Answer): Promise<void> {
  await world.learn();
  if (expected.outcome === 'waiting') {
    assert.equal(parked.ended, false);
    return;
  }
  const { realToken, ...answer } = await world.ended(parked);
  if (!realToken) return same(answer, expected);
  same({ ...answer, token: world.number(Number(realToken)) }, { outcome: expected.outcome, token: expected.token });
}

export const wait = (ways: Ways) =>
  step(`${ways.channel} joins the line, ${told(ways)}`, async (model, world) => {
    const ask = newAsk(world, ways, true);
    const arrival = world.place();
    const parked = world.park(ask, arrival);
    await world.quiet();
    await ofParked(world, parked, model.acquire(ask, 'line', arrival));
  });

export const waitNoTime = (ways: Ways, keeps: boolean) =>
  step(`${ways.channel} joins the line with no time to wait${keeps ? ', and keeps its place' : ''}, ${told(ways)}`, async (model, world) => {
    const ask = newAsk(world, ways, true);
    const result = await world.acquire(ask, { waitMs: 0, ...(keeps && { keepPlaceMs: KEEP }) });
    await world.learn();
    const joined = model.acquire(ask, 'line', world.place());
    if (result.outcome === 'acquired') {
      world.keep(result.lock, ask);
      return same({ outcome: 'acquired', token: world.number(result.lock.fencingToken) }, joined);
    }
    const out = world.out(result);
    if (out) return same(out, joined);
    // Whom this one put out leaves beside it: how long the line is then is a matter of luck.
    const isSure = model.told.ids.size === 0 && model.told.channels.size === 0;
    same({ outcome: result.outcome }, { outcome: joined.outcome === 'waiting' ? 'timedOut' : joined.outcome });
    const { queue } = model.leave([ask.id], 'take', keeps ? 'place' : 'nothing');
    if (isSure) assert.equal((result as TimedOut).queue, queue);
    if (keeps) world.kept.push(ask);
  });

export const comesBack = (pick: Pick) =>
  step(`comes back to its place: ${pick}`, async (model, world) => {
    const ask = from(world.kept, pick);
    if (!ask || world.parked.some(({ id }) => id === ask.id)) return;
    // Whose time there was over begins anew, unless it was put out meanwhile.
    const place = model.line.find(({ id }) => id === ask.id);
    if (place?.overdue && !place.out) model.line = model.line.filter((other) => other !== place);
    const arrival = place && !place.overdue ? place.arrival : world.place();
    const parked = world.park(ask, arrival);
    await world.quiet();
    await ofParked(world, parked, model.acquire(ask, 'line', arrival));
  });

export const abort = (pick: Pick) =>
  step(`waiter ${pick} goes away`, async (model, world) => {
    const parked = from(world.parked, pick);
    if (!parked) return;
    parked.abort.abort();
    assert.equal((await world.ended(parked)).outcome, 'aborted');
    model.leave([parked.id], 'back');
  });

export const nudge = (pick: Pick) =>
  step(`waiter ${pick} asks again`, async (model, world) => {
    const parked = from(world.parked, pick);
    if (!parked) return;
    await world.nudge(parked);
    await ofParked(world, parked, model.acquire(parked.ask, 'line', parked.arrival));
  });

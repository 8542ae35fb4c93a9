import { until } from '../../engine/support/until';
import type { Member, Model } from './model';
import { from, step, type Pick } from './step';
import { ofParked } from './taking';
import { RENEW, type World } from './world';

/** Steps of time, operators, hand-built chains, and Redis itself. */

/** What ran out, or fell silent, later in a run did so earlier in Redis, by more than a run takes. */
const STEP_MS = 10_000;
const ofMember = (text: string, pick: Pick, run: (model: Model, world: World, m: Member) => Promise<void>) =>
  step(`${text} ${pick}`, async (model, world) => {
    const m = from([...model.members].sort((a, b) => a.token - b.token).filter(({ ranOut }) => !ranOut), pick);
    if (m) await run(model, world, m);
  });

export const expire = (pick: Pick) =>
  ofMember('the time is over of holder', pick, async (model, world, m) => {
    const order = world.place();
    const becomes = { none: 'stays', long: 'stays', short: 'delete', leases: 'leases' } as const;
    await world.eyes.expire(world.key, m.id, order * STEP_MS, model.foreign ? 'stays' : becomes[model.keyTtl]);
    if (model.foreign) m.ranOut = order;
    else model.expire(m, order);
  });

export const age = (pick: Pick) =>
  ofMember('nothing was heard for long of holder', pick, async (model, world, m) => {
    const order = world.place();
    await world.eyes.age(world.key, m.id, 100 * RENEW + order * STEP_MS);
    Object.assign(m, { aged: order, old: true });
  });

export const forgetDone = () =>
  step('it is over for how long it is remembered that it was done', async (model, world) => {
    if (!model.done || model.done.over) return;
    await world.eyes.forget(world.key);
    model.done.over = true;
  });

export const settled = (pick: Pick) =>
  step(`nothing newer has come for long enough for ${pick}`, async (model, world) => {
    const place = from(model.line.filter(({ settling, out }) => settling && !out), pick);
    if (!place) return;
    await world.eyes.settle(world.key, place.id);
    place.settling = false;
  });

export const outdate = (pick: Pick) =>
  step(`the time is over of place ${pick}`, async (model, world) => {
    const place = from(model.line, pick);
    if (!place) return;
    await world.eyes.outdate(world.key, place.id);
    place.overdue = true;
  });

export const chain = (what: 'INCR' | 'SET' | 'SET PX' | 'DEL' | 'PEXPIRE short' | 'PEXPIRE long') =>
  step(`a stranger: ${what}`, async (model, world) => {
    const { redis, key } = world;
    if (what === 'DEL') {
      await redis.del(key);
      model.setKey(undefined);
    } else if (what === 'INCR') {
      await redis.incr(key);
      const { value } = model;
      if (!value) model.setKey({ foreign: 1 }, 'none');
      else if ('ours' in value) value.ours += 1;
      else value.foreign += 1;
    } else if (what === 'SET' || what === 'SET PX') {
      await (what === 'SET' ? redis.set(key, '7') : redis.set(key, '7', 'PX', 90_000));
      model.setKey({ foreign: 7 }, what === 'SET' ? 'none' : 'long');
    } else {
      await redis.pexpire(key, what === 'PEXPIRE short' ? 25_000 : 1_000_000);
      model.setKey(model.value, what === 'PEXPIRE short' ? 'short' : 'long');
    }
  });

export const loseData = () =>
  step('Redis loses its data', async (model, world) => {
    // Those who may be told to leave ask again together, those of several processes in any order.
    const told = world.parked.filter(({ ask }) => ask.once || ask.newest);
    if (new Set(told.map(({ ask }) => ask.channel)).size > 1) return;
    await world.redis.flushall();
    model.flush();
  });

/** Takes a while, so it is rare; and several who ask again at once come in any order. @param pick restarts at 19 only */
export const restart = (pick: Pick) =>
  step(pick === 19 ? 'Redis is restarted' : 'nothing', async (model, world) => {
    const [parked] = world.parked;
    // Who lets things settle first does not enter at once, which would say that it has asked again.
    if (pick !== 19 || world.parked.length > 1 || parked?.ask.settles) return;
    await world.restart();
    model.flush();
    if (parked) await ofParked(world, parked, await until(() => parked.ended, 2000).then(() => model.acquire(parked.ask, 'line', parked.arrival)));
  });

export const flushScripts = () => step('SCRIPT FLUSH', async (_, world) => void (await world.redis.script('FLUSH')));

import assert from 'node:assert/strict';
import type { OnLeave } from '../../../engine/transitions';
import type { Ask, Channel, Model } from './model';
import { KEEP, by, from, newAsk, otherMode, same, step, told, type Pick, type Ways } from './step';
import type { World } from './world';

/** Steps of the frozen and the dead process. */

const ghostAsks = (model: Model, world: World, ghost: { ask: Ask; ticket: number; arrival: number; channel: Channel }) => async () => {
  const { ask, channel } = ghost;
  if (ghost.ticket === 0) ghost.arrival = world.place();
  const where = { waitMs: 60_000, channel: world.channelOf(channel), arrived: ghost.ticket };
  const reply = await world.scripts.acquire(world.caller(ask), where, -1).catch(otherMode);
  await world.learn();
  const expected = model.acquire(ask, 'line', ghost.arrival);
  if (reply.outcome === 'waiting') {
    ghost.ticket = reply.ticket;
    same({ outcome: 'waiting' }, expected);
    return;
  }
  const out = reply.outcome === 'otherMode' ? reply : world.out(reply);
  if (out) return same(out, expected);
  assert.equal(reply.outcome, 'acquired');
  const { grant } = reply as Extract<typeof reply, { outcome: 'acquired' }>;
  same({ outcome: 'acquired', token: world.number(grant.fencingToken), ...(grant.again && { again: true }) }, expected);
  const { fencingToken, ttlMs } = grant;
  const [hold] = ask.holds;
  world.keep(world.locks('a').resume(world.key, { lockId: ask.id, fencingToken, ttlMs, owner: world.owner(ask.id), ...(hold && { hold }) }), ask);
};

export const ghostJoins = (ways: Ways) =>
  step(`the ${ways.channel} process had joined the line, ${told(ways)}`, async (model, world) => {
    const ghost = { channel: ways.channel, ask: newAsk(world, ways, true), ticket: 0, arrival: 0 };
    world.ghosts.set(ghost.ask.id, ghost);
    await ghostAsks(model, world, ghost)();
  });

const ofGhost = (text: string, pick: Pick, run: (model: Model, world: World, id: string) => Promise<void>) =>
  step(`${text} ${pick}`, async (model, world) => {
    const id = from([...world.ghosts.keys()], pick);
    if (id) await run(model, world, id);
  });

export const ghostReturns = (pick: Pick) => ofGhost('comes back and asks: ghost', pick, (model, world, id) => ghostAsks(model, world, world.ghosts.get(id)!)());

export const ghostLooks = (pick: Pick) =>
  ofGhost('looks: process of ghost', pick, async (model, world, id) => {
    const { channel } = world.ghosts.get(id)!;
    const { concerned } = await world.scripts.look(world.scripts.keys(world.key), world.channelOf(channel), [id], false);
    same({ outcome: 'look', concerned: [...new Set(concerned)].sort() }, model.look(channel, id));
  });

/** Several at once, as those whose time is over in the same moment, or who were told to leave. */
export const ghostsLeave = (picks: Pick[], mode: OnLeave, keeps: 'nothing' | 'place' | 'ifItMay') =>
  step(`leave (${mode}, keeping ${keeps}): ghosts ${picks}`, async (model, world) => {
    const known = [...world.ghosts.keys()];
    const ids = [...new Set(picks.map((pick) => from(known, pick)))].filter((id) => id !== undefined);
    if (ids.length === 0) return;
    const keepMs = { nothing: 0, place: KEEP, ifItMay: -1 }[keeps];
    const leavers = ids.map((lockId) => {
      const { index, policy } = world.caller(world.ghosts.get(lockId)!.ask);
      return { lockId, index, keepMs, hasPolicy: policy !== undefined };
    });
    const answer = await world.scripts.leave(world.scripts.keys(world.key), leavers, mode);
    await world.learn();
    const results = answer.results.map((left) => (!left ? 0 : 'outcome' in left ? world.out(left) : world.number(left.fencingToken)));
    same({ outcome: 'left', results, queue: answer.report.queue }, model.leave(ids, mode, keeps));
  });

/** A claim: of what it was handed, or of what it was handed before and lost. */
export const ghostClaims = (pick: Pick, which: Pick) =>
  ofGhost('claims what it was handed: ghost', pick, async (model, world, id) => {
    const { ask } = world.ghosts.get(id)!;
    const had = [model.member(id)?.token, ...model.lost.filter((entry) => entry.id === id).map(({ token }) => token)].filter((token) => token !== undefined);
    const token = from(had, which);
    if (token === undefined) return;
    const { index } = world.caller(ask);
    const real = await world.scripts.heartbeat(world.scripts.keys(world.key), id, { token: world.token(token), index });
    await world.learn();
    const expected = model.heartbeat(id, token, [], 0);
    if (real.outcome === 'lost') return same({ outcome: 'lost', reason: real.reason, by: by(world, real) }, expected);
    const { outcome, fencingToken, ttlMs, revived, keyTtlShortened } = real;
    same({ outcome, token: world.number(fencingToken), ttl: ttlMs, revived, shortened: keyTtlShortened !== undefined }, expected);
    if (world.handles.some((handle) => handle.id === id)) return;
    const [hold] = ask.holds;
    world.keep(world.locks('a').resume(world.key, { lockId: id, fencingToken, ttlMs, owner: world.owner(id), ...(hold && { hold }) }), ask);
  });

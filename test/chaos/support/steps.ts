import assert from 'node:assert/strict';
import fc from 'fast-check';
import { until } from '../../engine/support/until';
import { RENEW, TTL, type Handle, type Parked, type World } from './world';
import type { Answer, Ask, Channel, Member, Model, StealIf } from './model';
import type { Busy, NotStolen, TimedOut } from '../../../engine';

/** One step: what happens in Redis, the same in the model, and that both gave the same answer. */
export interface Step {
  text: string;
  run(model: Model, world: World): Promise<void>;
}

type Pick = number;
/** A place in line is kept for longer than a run takes. */
const KEEP = 50_000;
const from = <T>(list: T[], pick: Pick): T | undefined => list[pick % list.length];
const step = (text: string, run: Step['run']): Step => ({ text, run });

/** Answers of the API in the terms of the model. */
const inTheWay = (world: World, { queue, holders }: Busy | TimedOut | NotStolen) => ({
  queue,
  holders: holders.some((holder) => 'foreign' in holder) ? 'foreign' : holders.map((holder) => world.number((holder as { fencingToken: number }).fencingToken)),
});
const same = (real: Answer, expected: Answer) => assert.deepEqual(real, expected);
const robbedOf = (world: World, robbed: object | undefined) =>
  robbed && ('foreign' in robbed ? 'foreign' : world.number((robbed as { fencingToken: number }).fencingToken));

interface Ways {
  channel: Channel;
  limit: number;
  hold: string[];
}
const newAsk = (world: World, { channel, limit, hold }: Ways): Ask => ({ id: world.newId(channel), channel, limit, ttl: TTL, holds: [...hold] });

async function failFast(model: Model, world: World, ask: Ask, stealAfter: boolean): Promise<void> {
  const result = await world.locks(ask.channel).acquire(world.key, { ...world.options(ask), ...(stealAfter && { stealIfStaleMs: 50_000 }) });
  await world.learn();
  if (result.outcome !== 'acquired') {
    assert.equal(result.outcome, 'busy');
    same({ outcome: 'busy', reason: (result as Busy).reason, ...inTheWay(world, result) }, model.acquire(ask, 'no', 0, stealAfter));
    return;
  }
  const { again, robbed } = result.lock.grant;
  const victim = robbedOf(world, robbed);
  const expected = model.acquire(ask, 'no', 0, stealAfter, victim);
  world.keep(result.lock, ask);
  same({ outcome: 'acquired', token: world.number(result.lock.fencingToken), ...(again && { again }), ...(victim && { robbed: victim }) }, expected);
}

const take = (ways: Ways, stealAfter: boolean) =>
  step(`${ways.channel} acquires${stealAfter ? ', from a stale holder too' : ''}, limit ${ways.limit} ${ways.hold}`, (model, world) =>
    failFast(model, world, newAsk(world, ways), stealAfter),
  );

const takeAgain = (pick: Pick, hold: string[], channel: Channel) =>
  step(`${channel} acquires again under the id of ${pick} ${hold}`, async (model, world) => {
    const known = [...world.handles, ...[...world.ghosts.values()].map(({ ask }) => ask)];
    const old = from(known, pick);
    if (old) await failFast(model, world, { id: old.id, channel, limit: old.limit, ttl: TTL, holds: [...hold] }, false);
  });

async function ofParked(world: World, parked: Parked, expected: Answer): Promise<void> {
  await world.learn();
  if (expected.outcome === 'waiting') {
    assert.equal(parked.ended, false);
    return;
  }
  const { outcome, realToken } = await world.ended(parked);
  same({ outcome, token: world.number(Number(realToken)) }, { outcome: expected.outcome, token: expected.token });
}

const wait = (ways: Ways) =>
  step(`${ways.channel} joins the line, limit ${ways.limit} ${ways.hold}`, async (model, world) => {
    const ask = newAsk(world, ways);
    const arrival = world.place();
    const parked = world.park(ask, arrival);
    await world.quiet();
    await ofParked(world, parked, model.acquire(ask, 'line', arrival));
  });

const waitNoTime = (ways: Ways, keeps: boolean) =>
  step(`${ways.channel} joins the line with no time to wait${keeps ? ', and keeps its place' : ''}, limit ${ways.limit}`, async (model, world) => {
    const ask = newAsk(world, ways);
    const result = await world.locks(ways.channel).acquire(world.key, { ...world.options(ask), waitMs: 0, ...(keeps && { keepPlaceMs: KEEP }) });
    await world.learn();
    const joined = model.acquire(ask, 'line', world.place());
    const left = joined.outcome === 'waiting';
    const { outcome, token, queue } = left ? model.leave([ask.id], 'take', keeps) : joined;
    const expected = { outcome, ...(token !== undefined && { token }), ...(queue !== undefined && { queue }) };
    if (left && keeps) world.kept.push(ask);
    if (result.outcome === 'acquired') {
      world.keep(result.lock, ask);
      same({ outcome: 'acquired', token: world.number(result.lock.fencingToken) }, expected);
    } else same({ outcome: result.outcome === 'timedOut' ? 'left' : result.outcome, queue: result.queue }, expected);
  });

const comesBack = (pick: Pick) =>
  step(`comes back to its place: ${pick}`, async (model, world) => {
    const ask = from(world.kept, pick);
    if (!ask || world.parked.some(({ id }) => id === ask.id)) return;
    // Whose time there was over begins anew.
    const place = model.line.find(({ id }) => id === ask.id);
    if (place?.overdue) model.line = model.line.filter((other) => other !== place);
    const arrival = place && !place.overdue ? place.arrival : world.place();
    const parked = world.park(ask, arrival);
    await world.quiet();
    await ofParked(world, parked, model.acquire(ask, 'line', arrival));
  });

const abort = (pick: Pick) =>
  step(`waiter ${pick} goes away`, async (model, world) => {
    const parked = from(world.parked, pick);
    if (!parked) return;
    parked.abort.abort();
    assert.equal((await world.ended(parked)).outcome, 'aborted');
    model.leave([parked.id], 'back');
  });

const nudge = (pick: Pick) =>
  step(`waiter ${pick} asks again`, async (model, world) => {
    const parked = from(world.parked, pick);
    if (!parked) return;
    await world.nudge(parked);
    await ofParked(world, parked, model.acquire(parked.ask, 'line', parked.arrival));
  });

const ofHandle = (text: string, pick: Pick, run: (model: Model, world: World, handle: Handle) => Promise<void>) =>
  step(`${text} ${pick}`, async (model, world) => {
    const handle = from(world.handles, pick);
    if (handle) await run(model, world, handle);
  });

const by = (world: World, answer: { by?: { fencingToken: number } }) => (answer.by ? world.number(answer.by.fencingToken) : 0);

const heartbeat = (pick: Pick, ttl: number) =>
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

const release = (pick: Pick) =>
  ofHandle('release of handle', pick, async (model, world, { lock, id, hold }) => {
    const token = world.number(lock.fencingToken);
    const real = await lock.release();
    const expected = model.release(id, token, hold);
    if (real.outcome === 'notHeld') same({ outcome: 'notHeld', reason: real.reason, by: by(world, real) }, expected);
    else same({ ...real }, expected);
  });

const steal = (ways: Ways, how: Exclude<StealIf, object> | 'fencingToken', pick: Pick) =>
  step(`${ways.channel} steals if ${how} ${pick}, limit ${ways.limit}`, async (model, world) => {
    const seen = world.number(from(world.handles, pick)?.lock.fencingToken ?? 0);
    if (how === 'fencingToken' && !seen) return;
    const ask = newAsk(world, ways);
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

// The frozen and the dead process.

const ghostAsks = (model: Model, world: World, ghost: { ask: Ask; ticket: number; arrival: number; channel: Channel }) => async () => {
  const { ask, channel } = ghost;
  if (ghost.ticket === 0) ghost.arrival = world.place();
  const reply = await world.scripts.acquire(world.caller(ask), { waitMs: 60_000, channel: world.channelOf(channel), arrived: ghost.ticket }, -1);
  await world.learn();
  const expected = model.acquire(ask, 'line', ghost.arrival);
  if (reply.outcome === 'waiting') {
    ghost.ticket = reply.ticket;
    same({ outcome: 'waiting' }, expected);
    return;
  }
  assert.equal(reply.outcome, 'acquired');
  const { grant } = reply as Extract<typeof reply, { outcome: 'acquired' }>;
  same({ outcome: 'acquired', token: world.number(grant.fencingToken), ...(grant.again && { again: true }) }, expected);
  const { fencingToken, ttlMs } = grant;
  const [hold] = ask.holds;
  world.keep(world.locks('a').resume(world.key, { lockId: ask.id, fencingToken, ttlMs, owner: world.owner(ask.id), ...(hold && { hold }) }), ask);
};

const ghostJoins = (ways: Ways) =>
  step(`the ${ways.channel} process had joined the line, limit ${ways.limit} ${ways.hold}`, async (model, world) => {
    const ghost = { channel: ways.channel, ask: newAsk(world, ways), ticket: 0, arrival: 0 };
    world.ghosts.set(ghost.ask.id, ghost);
    await ghostAsks(model, world, ghost)();
  });

const ofGhost = (text: string, pick: Pick, run: (model: Model, world: World, id: string) => Promise<void>) =>
  step(`${text} ${pick}`, async (model, world) => {
    const id = from([...world.ghosts.keys()], pick);
    if (id) await run(model, world, id);
  });

const ghostReturns = (pick: Pick) => ofGhost('comes back and asks: ghost', pick, (model, world, id) => ghostAsks(model, world, world.ghosts.get(id)!)());

const ghostLooks = (pick: Pick) =>
  ofGhost('looks: process of ghost', pick, async (model, world, id) => {
    const { channel } = world.ghosts.get(id)!;
    const { concerned } = await world.scripts.look(world.scripts.keys(world.key), world.channelOf(channel), [id], false);
    same({ outcome: 'look', concerned: concerned.sort() }, model.look(channel, id));
  });

/** Several at once, as those whose time is over in the same moment. */
const ghostsLeave = (picks: Pick[], mode: 'take' | 'back' | 'unclaimed', keeps: boolean) =>
  step(`leave (${mode}${keeps ? ', keeping the place' : ''}): ghosts ${picks}`, async (model, world) => {
    const known = [...world.ghosts.keys()];
    const ids = [...new Set(picks.map((pick) => from(known, pick)))].filter((id) => id !== undefined);
    if (ids.length === 0) return;
    const leavers = ids.map((lockId) => ({ lockId, index: world.caller(world.ghosts.get(lockId)!.ask).index, keepMs: keeps ? KEEP : 0 }));
    const { grants, report } = await world.scripts.leave(world.scripts.keys(world.key), leavers, mode);
    await world.learn();
    const tokens = grants.map((grant) => (grant ? world.number(grant.fencingToken) : 0));
    same({ outcome: 'left', tokens, queue: report.queue }, model.leave(ids, mode, keeps));
  });

/** A claim: of what it was handed, or of what it was handed before and lost. */
const ghostClaims = (pick: Pick, which: Pick) =>
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

// Time, operators, chains, Redis itself.

/** What ran out, or fell silent, later in a run did so earlier in Redis, by more than a run takes. */
const STEP_MS = 10_000;
const ofMember = (text: string, pick: Pick, run: (model: Model, world: World, m: Member) => Promise<void>) =>
  step(`${text} ${pick}`, async (model, world) => {
    const m = from([...model.members].sort((a, b) => a.token - b.token).filter(({ ranOut }) => !ranOut), pick);
    if (m) await run(model, world, m);
  });

const expire = (pick: Pick) =>
  ofMember('the time is over of holder', pick, async (model, world, m) => {
    const order = world.place();
    const becomes = { none: 'stays', long: 'stays', short: 'delete', leases: 'leases' } as const;
    await world.eyes.expire(world.key, m.id, order * STEP_MS, model.foreign ? 'stays' : becomes[model.keyTtl]);
    if (model.foreign) m.ranOut = order;
    else model.expire(m, order);
  });

const age = (pick: Pick) =>
  ofMember('nothing was heard for long of holder', pick, async (model, world, m) => {
    const order = world.place();
    await world.eyes.age(world.key, m.id, 100 * RENEW + order * STEP_MS);
    Object.assign(m, { aged: order, old: true });
  });

const outdate = (pick: Pick) =>
  step(`the time is over of place ${pick}`, async (model, world) => {
    const place = from(model.line, pick);
    if (!place) return;
    await world.eyes.outdate(world.key, place.id);
    place.overdue = true;
  });

const chain = (what: 'INCR' | 'SET' | 'SET PX' | 'DEL' | 'PEXPIRE short' | 'PEXPIRE long') =>
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

const forget = () =>
  step('Redis loses its data', async (model, world) => {
    await world.redis.flushall();
    model.flush();
  });

/** Takes a while, so it is rare; and several who ask again at once come in any order. @param pick restarts at 19 only */
const restart = (pick: Pick) =>
  step(pick === 19 ? 'Redis is restarted' : 'nothing', async (model, world) => {
    if (pick !== 19 || world.parked.length > 1) return;
    const [parked] = world.parked;
    await world.restart();
    model.flush();
    if (parked) await ofParked(world, parked, await until(() => parked.ended, 2000).then(() => model.acquire(parked.ask, 'line', parked.arrival)));
  });

const flushScripts = () => step('SCRIPT FLUSH', async (_, world) => void (await world.redis.script('FLUSH')));

const status = (channel: Channel) =>
  step(`${channel} asks for the status`, async (model, world) => {
    const { state, holders, queue } = await world.locks(channel).status(world.key);
    const foreign = holders.some((holder) => 'foreign' in holder);
    const tokens = holders.map((holder) => ('foreign' in holder ? 0 : world.number(holder.fencingToken)));
    const gone = model.value === undefined;
    const expected = model.foreign ? [0] : gone ? [] : model.living.map(({ token }) => token);
    const stale = !model.foreign && !gone && model.living.some(({ aged }) => aged);
    const kind = model.foreign ? (model.keyTtl === 'none' ? 'noTtl' : 'foreign') : expected.length === 0 ? 'free' : stale ? 'stale' : 'held';
    const handing = model.members.some(({ given, ranOut }) => given && !ranOut);
    assert.deepEqual({ foreign, tokens, queue, state: handing ? kind : state }, { foreign: model.foreign, tokens: expected, queue: model.line.length, state: kind });
  });

/** The steps that a run is made of. @param limits which permits callers ask for */
export function steps(limits: fc.Arbitrary<number>): fc.Arbitrary<Step> {
  const live = fc.constantFrom<Channel>('a', 'b', 'c');
  const ghost = fc.constantFrom<Channel>('frozen', 'dead');
  const hold = fc.constantFrom<string[]>([], [], ['x'], ['y']);
  const ways = (channel: fc.Arbitrary<Channel>) => fc.record({ channel, limit: limits, hold });
  const pick = fc.nat({ max: 11 });
  const some = <T extends unknown[]>(weight: number, make: (...args: T) => Step, ...args: { [K in keyof T]: fc.Arbitrary<T[K]> }) => ({
    weight,
    arbitrary: fc.tuple(...args).map((values) => make(...(values as T))),
  });
  return fc.oneof(
    some(8, take, ways(live), fc.boolean()),
    some(8, wait, ways(live)),
    some(3, waitNoTime, ways(live), fc.boolean()),
    some(3, comesBack, pick),
    some(2, takeAgain, pick, hold, live),
    some(2, abort, pick),
    some(3, nudge, pick),
    some(5, heartbeat, pick, fc.constantFrom(0, 120_000)),
    some(9, release, pick),
    some(4, steal, ways(live), fc.constantFrom('stale', 'silent', 'noTtl', 'any', 'fencingToken'), pick),
    some(4, ghostJoins, ways(ghost)),
    some(3, ghostReturns, pick),
    some(2, ghostLooks, pick),
    some(3, ghostClaims, pick, pick),
    some(2, ghostsLeave, fc.array(pick, { minLength: 1, maxLength: 3 }), fc.constantFrom('take', 'back', 'unclaimed'), fc.boolean()),
    some(6, expire, pick),
    some(3, age, pick),
    some(1, outdate, pick),
    some(4, chain, fc.constantFrom('INCR', 'SET', 'SET PX', 'DEL', 'DEL', 'PEXPIRE short', 'PEXPIRE long')),
    some(1, forget),
    some(1, flushScripts),
    some(1, status, live),
    some(1, restart, fc.nat({ max: 19 })),
  );
}

import assert from 'node:assert/strict';
import type { Busy, NotStolen, TimedOut } from '../../../engine';
import { LockOptionError } from '../../../engine/errors';
import { TTL, type World } from './world';
import type { Answer, Ask, Channel, Model } from './model';

/** One step: what happens in Redis, the same in the model, and that both gave the same answer. */
export interface Step {
  text: string;
  run(model: Model, world: World): Promise<void>;
}

export type Pick = number;
/** A place in line is kept for longer than a run takes. */
export const KEEP = 50_000;
export const from = <T>(list: T[], pick: Pick): T | undefined => list[pick % list.length];
export const step = (text: string, run: Step['run']): Step => ({ text, run });

/** Answers of the API in the terms of the model. */
export const inTheWay = (world: World, { queue, holders }: Busy | TimedOut | NotStolen) => ({
  queue,
  holders: holders.some((holder) => 'foreign' in holder) ? 'foreign' : holders.map((holder) => world.number((holder as { fencingToken: number }).fencingToken)),
});
export const same = (real: Answer, expected: Answer) => assert.deepEqual(real, expected);
export const by = (world: World, answer: { by?: { fencingToken: number } }) => (answer.by ? world.number(answer.by.fencingToken) : 0);
export const robbedOf = (world: World, robbed: object | undefined) =>
  robbed && ('foreign' in robbed ? 'foreign' : world.number((robbed as { fencingToken: number }).fencingToken));

/** Whoever holds it shared does not get it exclusively under the same id, nor the other way round. */
export const otherMode = (error: unknown): { outcome: 'otherMode' } | Promise<never> =>
  error instanceof LockOptionError && error.option === 'mode' ? { outcome: 'otherMode' } : Promise.reject(error);

/** Who asks, and for what. `newest` counts for those who wait, `settles` for those of them. */
export interface Ways {
  channel: Channel;
  limit: number;
  hold: string[];
  once: boolean;
  newest: boolean;
  settles: boolean;
}
export const newAsk = (world: World, { channel, limit, hold, once, newest, settles }: Ways, waits: boolean): Ask => {
  return { id: world.newId(channel), channel, limit, ttl: TTL, holds: [...hold], once, newest: newest && waits, settles: settles && newest && waits };
};
export const told = ({ limit, hold, once, newest, settles }: Ways) => `limit ${limit} ${hold}${once ? ' once' : ''}${newest ? ' newest' : ''}${newest && settles ? ' when settled' : ''}`;

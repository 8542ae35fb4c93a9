import type { Owner } from '../../../engine';
import type { Seen } from './eyes';
import type { Model, Waiter } from './model';

/** The whole state of a lock, of Redis and of its model in the same words. */

export const PROCESSES = ['a', 'b', 'c', 'frozen', 'dead'] as const;

/** How what stands in Redis is called in the model: processes by their channels, tokens by their numbers. */
interface Names {
  nameOf(channel: string): string;
  number(token: number): number;
  /** How many tokens are smaller. */
  below(token: number): number;
}

export function inRedis(seen: Seen, model: Model, { nameOf, number, below }: Names): object {
  const { value, fence, done } = seen;
  return {
    value: value === '' ? undefined : value.length === 16 && fence ? { ours: Number(value) - fence } : { foreign: Number(value) },
    fence: fence && number(fence),
    floor: seen.floor && below(seen.floor) + 1,
    holders: byToken(seen.holders.map(({ id, token, living, given, ttl, limit, holds }) => ({ id, token: number(token), living, given, ttl, limit, holds }))),
    lost: byToken(seen.lost.map(({ id, token, reason, by }) => ({ id, token: number(token), reason, by: number(by) }))),
    line: seen.line,
    waits: byId([...seen.waits].map(([id, { channel, once, newest, settling, owner }]) => ({ id, channel: nameOf(channel), once, newest, settling, for: executionOf(owner) }))),
    done: done && { token: number(done.token), by: executionOf(done.owner), result: done.result && JSON.parse(done.result), over: done.over },
    newest: stillWaits(model, seen.newest),
    silent: seen.silent.map(nameOf).sort(),
    marks: seen.marks,
    index: seen.indexes.map((ids) => ids.sort()),
    // Only a stranger may leave his own key without an end.
    bare: seen.bare,
  };
}

export function inModel(model: Model, key: string): object {
  const { value, fence, done } = model;
  return {
    value,
    fence,
    floor: model.floor ?? 0,
    holders: byToken(model.members.map(({ id, token, ranOut, given, ttl, limit, holds }) => ({ id, token, living: !ranOut, given, ttl, limit, holds }))),
    lost: byToken([...model.lost]),
    line: model.line.map(({ id }) => id),
    waits: byId([...model.line, ...model.members.filter(({ given }) => given)].map(stored)),
    done: done && { ...done, result: done.result ?? '' },
    newest: stillWaits(model, model.newest),
    silent: [...model.silent].sort(),
    marks: [],
    index: PROCESSES.map((name) => [...(model.index.get(name) ?? [])].sort()),
    bare: value && model.keyTtl === 'none' ? [key] : [],
  };
}

const byId = <T extends { id: string }>(list: T[]) => list.sort((a, b) => (a.id < b.id ? -1 : 1));
const byToken = <T extends { token: number }>(list: T[]) => list.sort((a, b) => a.token - b.token);
const executionOf = (record: string) => (JSON.parse(record) as Owner).executionId;

/** What stands of a waiter in Redis. Of one that was put out, who did that. */
function stored({ id, channel, once, newest, settling, away, out }: Waiter) {
  if (out) return { id, channel: '^', once: false, newest: false, settling: false, for: out };
  return { id, channel: away ? '-' : channel, once, newest, settling, for: id.split('-')[0] };
}

/** One who was the newest, and is no longer, is cleared away by the next script; which that is depends on who is quicker. */
function stillWaits({ line, members }: Model, id: string | undefined): string | undefined {
  return line.some((w) => w.id === id) || members.some((m) => m.id === id && m.given) ? id : undefined;
}

import type { IExecuteFunctions } from 'n8n-workflow';
import type { Locks } from '../../../engine';
import type { Redis } from '../connection';
import { callerOf, identityOf, itemError } from '../execution';
import type { HeldLock, HeldLocks } from '../held';
import { membersOf, type CarriedLock } from '../lockField';
import { heldByCaller } from '../lookAfter';
import { readKey, readKeys } from '../keyParameter';
import { readText } from '../parameters';
import type { Run } from '../run';
import { isChildHold } from '../take';

/** Which lock a Heartbeat or Release is about. */
export type Target =
  | { by: 'auto' }
  | { by: 'execution' }
  | { by: 'node'; node: string }
  | { by: 'key'; keys: string[] }
  | { by: 'lockId'; lockId: string; key?: string }
  | { by: 'otherExecution'; executionId: string };

/** A lock to be asked about. `hold`: give back only that hold; absent: the whole lock. */
export interface Chosen {
  key: string;
  lockId: string;
  fencingToken?: number;
  hold?: string;
  /** The lease that it was taken with, where that is known. */
  ttlMs?: number;
  /** With Acquire Once: for so long its release is remembered as done, unless it is not to be. */
  rememberMs?: number;
  done?: { result?: unknown };
}

export function readTarget({ context }: Run, index: number): Target {
  const by = context.getNodeParameter('target', index, 'auto') as Target['by'];
  switch (by) {
    case 'node':
      return { by, node: readText(context, 'acquiredBy', 'Acquire Node', index) };
    case 'key':
      return { by, keys: readKeys(context, index) };
    case 'lockId': {
      const lockId = readText(context, 'lockId', 'Lock ID', index);
      const hasKey = ![undefined, null, ''].includes(context.getNodeParameter('key', index, '') as string);
      return { by, lockId, ...(hasKey ? { key: readKey(context, index) } : {}) };
    }
    case 'otherExecution':
      return { by, executionId: readText(context, 'executionId', 'Execution ID', index, 'Behind an Error Trigger it is {{ $json.execution.id }}.') };
    case 'auto':
    case 'execution':
      return { by };
    default:
      throw itemError(context, `Which Lock (item ${index}) is "${String(by)}", which this version does not know. Choose one from the list.`, index);
  }
}

/** Which locks each item is about. What Redis has to be asked for is asked for once. */
export async function chooseAll<T extends { target: Target; forCaller: boolean }>(
  run: Run,
  requests: Map<number, T>,
  redis: Redis,
  held: HeldLocks,
  auto: (index: number) => Chosen[] | undefined,
): Promise<Array<[number, T, Chosen[] | undefined]>> {
  let unknown: Promise<Chosen[]> | undefined;
  return await Promise.all(
    [...requests].map(async ([index, request]): Promise<[number, T, Chosen[] | undefined]> => {
      const { target, forCaller } = request;
      if (forCaller && (target.by === 'execution' || target.by === 'key')) return [index, request, await ofCaller(run.context, redis, target)];
      if (target.by === 'otherExecution') return [index, request, []];
      const chosen = target.by === 'auto' ? auto(index) : choose(run, index, target, held);
      const wantsAll = target.by === 'execution' || (target.by === 'auto' && chosen?.length === 0 && run.last(index)?.protected !== false);
      if (!chosen || !wantsAll) return [index, request, chosen];
      return [index, request, [...chosen, ...(await (unknown ??= fromIndex(run.context, redis.locks, held)))]];
    }),
  );
}

/** What was asked for explicitly (all but `auto`), as far as it is known. */
function choose(run: Run, index: number, target: Exclude<Target, { by: 'auto' | 'otherExecution' }>, held: HeldLocks): Chosen[] {
  switch (target.by) {
    case 'execution':
      return held.all().flatMap(own);
    case 'node':
      return held.byNode(target.node).map((lock) => ({ ...whole(lock), hold: target.node }));
    case 'key':
      return target.keys.flatMap((key) => byKey(run, index, key, held));
    case 'lockId':
      return byLockId(run, index, target, held);
  }
}

function byKey(run: Run, index: number, key: string, held: HeldLocks): Chosen[] {
  const known = held.byKey(key);
  if (known) return own(known);
  const onItem = run.open(index).flatMap((lock) => fromItem(lock, held));
  return onItem.filter((lock) => lock.key === key && lock.lockId !== '').slice(0, 1);
}

function byLockId(run: Run, index: number, { lockId, key }: Extract<Target, { by: 'lockId' }>, held: HeldLocks): Chosen[] {
  const known = held.byId(lockId);
  if (known) return [whole(known)];
  // Of several keys that were taken together.
  const group = held.byGroup(lockId);
  if (group.length > 0) return group.map(whole);
  const onItem = run.open(index).find((lock) => lock.lockId === lockId);
  if (onItem) return fromItem(onItem, held).map((lock) => ({ ...lock, hold: undefined }));
  if (key) return [{ key, lockId }];
  throw keyNeeded(run.context, index);
}

function keyNeeded(context: IExecuteFunctions, index: number) {
  return itemError(context, `Key (item ${index}) is empty. This execution did not acquire that lock ID, so the key of the lock is needed too.`, index);
}

export const whole = ({ key, lockId, fencingToken, ttlMs }: Chosen): Chosen => ({ key, lockId, fencingToken, ttlMs });

/** What a lock is to this execution: all of it, or, where it is its caller's, what nodes of this one have of it. */
function own(lock: HeldLock): Chosen[] {
  return lock.ofCaller ? lock.holds.map((hold) => ({ ...whole(lock), hold })) : [whole(lock)];
}

/** What sub-workflows took for the execution that called this one. */
async function ofCaller(context: IExecuteFunctions, redis: Redis, target: Extract<Target, { by: 'execution' | 'key' }>): Promise<Chosen[]> {
  const caller = callerOf(context);
  const { instanceId } = identityOf(context);
  if (!caller || !instanceId) return [];
  const wanted = ({ key }: { key: string }) => target.by === 'execution' || target.keys.includes(key);
  const known = heldByCaller(context, redis)?.all().filter(wanted) ?? [];
  const unknown = await inIndex(redis.locks, { instanceId, executionId: caller.executionId }, (lockId) => known.some((lock) => lock.lockId === lockId));
  return [...known.flatMap((lock) => lock.holds.filter(isChildHold).map((hold) => ({ ...whole(lock), hold }))), ...unknown.filter(wanted)];
}

/** A lock that the item carries, with the hold of the node that took it; of several keys, that of each. */
export function fromItem(lock: CarriedLock, held: HeldLocks): Chosen[] {
  const { acquiredBy, hold = acquiredBy, ttlSeconds, rememberDoneSeconds } = lock;
  return membersOf(lock).map(({ key, lockId, fencingToken }) => {
    // An item that was made before a Wait or a retry has the token of then.
    const known = held.byId(lockId);
    return { key, lockId, hold, fencingToken: known?.fencingToken ?? fencingToken, ttlMs: known?.ttlMs ?? (ttlSeconds ? ttlSeconds * 1000 : undefined), ...(rememberDoneSeconds && { rememberMs: rememberDoneSeconds * 1000 }) };
  });
}

/** What this execution holds and knows nothing of: a sub-workflow took it, and the items on which it came are gone. */
async function fromIndex(context: IExecuteFunctions, locks: Locks, held: HeldLocks): Promise<Chosen[]> {
  const { instanceId, executionId } = identityOf(context);
  if (!instanceId || !executionId) return [];
  return await inIndex(locks, { instanceId, executionId }, (lockId) => held.byId(lockId) !== undefined);
}

async function inIndex(locks: Locks, execution: { instanceId: string; executionId: string }, isKnown: (lockId: string) => boolean): Promise<Chosen[]> {
  const entries = (await locks.heldBy(execution)).filter(({ lockId }) => !isKnown(lockId));
  // An index says what may be held. A status changes nothing; a heartbeat would revive.
  const states = await Promise.all(entries.map(async ({ key }) => await locks.status(key)));
  return entries.filter((_, i) => states[i]?.holders.some((holder) => 'owner' in holder && holder.owner.executionId === execution.executionId));
}

/** Answers of one call for each distinct lock, however many items are about it. */
export class OncePerLock<T> {
  private readonly answers = new Map<string, Promise<T>>();

  constructor(private readonly ask: (lock: Chosen) => Promise<T>) {}

  get(lock: Chosen): Promise<T> {
    const name = JSON.stringify([lock.lockId, lock.hold]);
    let answer = this.answers.get(name);
    if (!answer) this.answers.set(name, (answer = this.ask(lock)));
    return answer;
  }
}

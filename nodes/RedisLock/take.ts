import { randomUUID } from 'node:crypto';
import type { IDataObject, IExecuteFunctions } from 'n8n-workflow';
import { LockOptionError, type AcquireOptions, type Busy, type DoneBefore, type ForeignHolder, type Holder, type Lock, type Locks, type Owner, type TimedOut } from '../../engine';
import type { Redis } from './connection';
import { callerOf, endsHere, hint, isConnected, itemError, ownerOf, type CallingExecution } from './execution';
import { placesOf, type HeldLocks, type Care, type HeldLock } from './held';
import { THIS_PROCESS, renewEveryMs } from './keepAlive';
import { heldByCaller, type Own } from './lookAfter';

/** Taking a lock for an execution: this one, or the one that called it. */

/** The hold of a node in a sub-workflow, as its caller has it. */
const childHold = (workflowId: string | undefined, node: string) => `sub:${workflowId}/${node}`;
export const isChildHold = (hold: string) => hold.startsWith('sub:');

/** For whom a lock is taken. */
export interface Party {
  owner: Owner;
  /** Name of the hold of this node. */
  hold: string;
  held: HeldLocks;
  /** Only with Owner: Calling Execution. */
  caller?: { execution: CallingExecution; held: HeldLocks | undefined };
}

/** @throws NodeOperationError where the calling execution can't be the owner */
export function partyOf(context: IExecuteFunctions, redis: Redis, { held }: Own, forCaller: boolean, note: string, index: number): Party {
  const owner = ownerOf(context, note);
  const { name } = context.getNode();
  const execution = forCaller ? callerOf(context) : undefined;
  if (!execution) {
    if (forCaller) hint(context, 'Owner is Calling Execution, but no other workflow called this one: the lock belongs to this execution.');
    return { owner, hold: name, held };
  }
  if (!execution.waits) {
    throw itemError(
      context,
      `Owner (item ${index}) can't be Calling Execution: execution ${execution.executionId} does not wait for this one, so it may end before. Choose This Execution, or switch on "Wait For Sub-Workflow Completion" there.`,
      index,
    );
  }
  const { executionId, workflowId } = execution;
  const executionUrl = owner.executionUrl?.replace(/workflow\/.*$/, `workflow/${workflowId}/executions/${executionId}`);
  return {
    owner: { ...owner, executionId, workflowId, workflowName: undefined, runIndex: undefined, executionUrl },
    // Nodes of several workflows may have the same name.
    hold: childHold(owner.workflowId, name),
    held,
    caller: { execution, held: heldByCaller(context, redis) },
  };
}

/** A sub-workflow that ends behind this node would lose the lock without anybody noticing. @throws NodeOperationError */
export function refuseLockForNobody(context: IExecuteFunctions, { caller }: Party, { releaseOnEnd }: Care, index: number): void {
  if (caller || releaseOnEnd === 'never' || isConnected(context, 0)) return;
  if (callerOf(context)) {
    throw itemError(
      context,
      'Nothing is connected behind the first output, so this sub-workflow would end, and the lock with it, before its caller goes on. Choose Options, Owner: Calling Execution.',
      index,
    );
  }
  hint(context, 'Nothing is connected behind the first output: the execution ends here, and the lock with it.');
}

/** Tells what the user would else have to find out: where the lock is looked after less well than he may think. */
export function warnOfCare(context: IExecuteFunctions, { told }: Own, { keepAlive, releaseOnEnd, rememberMs }: Care): void {
  if (told === 'not' && (keepAlive || releaseOnEnd !== 'never')) {
    hint(context, 'This n8n does not tell when an execution ends, so the lock is neither kept alive nor released then. Use Heartbeat nodes, and Release on every path.');
  } else if (told === 'only' && (keepAlive || releaseOnEnd === 'success')) {
    hint(context, 'This n8n tells only that an execution ended, not how: a lock is not kept through a Wait, and not released by "On Success".');
  }
  if (endsHere(context) && releaseOnEnd !== 'never') {
    hint(context, 'The execution of this step ends here, so the lock is given back at once. To see it held, execute the whole workflow.');
  }
  if (rememberMs !== undefined && told !== 'withStatus') {
    hint(context, 'This n8n does not tell whether an execution succeeded, so nothing is remembered as done at its end. Put a Release where the work is done.');
  }
  const wait = unattendedWait(context);
  if (wait && (keepAlive || rememberMs !== undefined)) {
    const unmarked = rememberMs === undefined ? '' : ', with nothing remembered as done';
    hint(context, `No Redis Lock node follows "${wait}": after that Wait nothing keeps the lock alive or releases it, and it ends by its TTL${unmarked}. Put a Heartbeat or a Release behind it.`);
  }
}

/** A Wait node behind this one with no Redis Lock node behind it. */
function unattendedWait(context: IExecuteFunctions): string | undefined {
  const node = context.getNode();
  const behind = (name: string) => context.getChildNodes?.(name) ?? [];
  return behind(node.name).find(({ name, type }) => type === 'n8n-nodes-base.wait' && !behind(name).some((each) => each.type === node.type))?.name;
}

/** A record of a lock that was granted to that party. */
export function record(party: Party, lock: { key: string; lockId: string; fencingToken: number; ttlMs: number }, { told }: Own, care: Care, { shared = false } = {}): HeldLock {
  const { key, lockId, fencingToken, ttlMs } = lock;
  const { owner, hold, held, caller } = party;
  const common = { key, lockId, fencingToken, ttlMs, ...(shared && { shared }), ...care, executionId: owner.executionId, process: THIS_PROCESS };
  if (!caller) return held.add({ ...common, keepAlive: care.keepAlive && told !== 'not' }, hold);
  caller.held?.add(common, hold);
  return held.add({ ...common, ofCaller: caller.held ? 'cared' : 'uncared' }, hold);
}

/** One execution can't hold a lock shared and exclusively. */
class OtherMode extends LockOptionError {
  constructor(key: string, shared: boolean) {
    const problem = shared
      ? `is Shared, but this execution holds "${key}" exclusively already. Choose Exclusive here too, or release it first`
      : `is Exclusive, but this execution holds "${key}" shared already. Release it first, or take it exclusively from the start`;
    super('mode', problem);
  }
}

type Acquired = Awaited<ReturnType<Locks['acquireOnce']>>;
/** What an execution has of one request: one lock, or one of each of several keys. */
export interface Entry {
  outcome: 'acquired';
  /** Of the whole. */
  lockId: string;
  locks: Lock[];
  /** It had all of it already. */
  again: boolean;
}

const entryOf = (lock: Lock): Entry => ({ outcome: 'acquired', lockId: lock.lockId, locks: [lock], again: lock.grant.again });

/** `key`: of several, the one that was not to be had. */
type Not<T> = T & { key?: string };
type NotHad = Not<Omit<Busy, 'reason'> & { reason: Busy['reason'] | 'heldByCaller' | 'ownExecution' }> | Not<TimedOut>;
export type Taken = Entry | NotHad | DoneBefore;

/** Another hold on a lock that the party has, or a new lock. @throws RedisLockError · the reason of `signal` */
export async function take(context: IExecuteFunctions, redis: Redis, own: Own, party: Party, key: string, options: AcquireOptions, care: Care): Promise<Taken> {
  const { locks } = redis;
  const { owner, hold } = party;
  const renewal = care.keepAlive && own.told !== 'not' ? { renewEveryMs: renewEveryMs(options.ttlMs) } : {};
  if (care.rememberMs !== undefined && isDuplicate(context, party, key)) {
    const { holders, queue } = await locks.status(key);
    return { outcome: 'busy', reason: 'ownExecution', holders, queue };
  }
  const again = await takeAgain(locks, own, party, key, options, care);
  if (again) return entryOf(again);
  // A workflow can't look after a lease that is shorter than what it was told: it goes on once Redis has confirmed it.
  const asked: AcquireOptions = { ...options, ...renewal, owner: { ...owner, rememberMs: care.rememberMs }, hold, confirm: true };
  // Who waits for the execution that waits for him waits for ever.
  const caller = party.caller ? undefined : callerOf(context);
  const isInTheWay = (holders: Array<Holder | ForeignHolder>) => caller?.waits === true && callerIsInTheWay(holders, owner.instanceId, caller, asked);
  let atOnce = false;
  if (caller?.waits && asked.waitMs !== undefined) {
    const { holders, queue } = await locks.status(key);
    if (isInTheWay(holders)) return { outcome: 'busy', reason: 'heldByCaller', holders, queue };
    // Where it does not fit beside its caller at once, somebody waits for that caller, and it would wait behind him.
    atOnce = asked.mode === 'shared' && asked.waiting !== 'newest' && holders.some((holder) => 'owner' in holder && isOf(holder.owner, owner.instanceId, caller));
  }
  const answer = await waitInPlace(context, redis, key, atOnce ? { ...asked, waitMs: undefined, keepPlaceMs: undefined } : asked, care.rememberMs !== undefined);
  if (answer.outcome === 'busy' && answer.reason !== 'superseded' && (atOnce || isInTheWay(answer.holders))) return { ...answer, reason: 'heldByCaller' };
  if (answer.outcome !== 'acquired') return answer;
  const held = record(party, answer.lock, own, care, { shared: asked.mode === 'shared' });
  if (care.rememberMs !== undefined) held.onceIn = context.getExecutionId();
  return entryOf(answer.lock);
}

/** The same thing came to the same node of this execution before, and is being done. A retry of the execution goes on with it instead. */
function isDuplicate(context: IExecuteFunctions, { held, hold }: Party, key: string): boolean {
  const known = held.byKey(key);
  return known !== undefined && known.lost === undefined && known.onceIn === context.getExecutionId() && known.holds.includes(hold);
}

/** The same for several keys, all or none. */
export async function takeSeveral(
  context: IExecuteFunctions,
  { locks }: Redis,
  own: Own,
  party: Party,
  keys: string[],
  options: Pick<AcquireOptions, 'ttlMs' | 'waitMs' | 'signal'>,
  care: Care,
): Promise<Taken> {
  const { owner, hold } = party;
  const caller = party.caller ? undefined : callerOf(context);
  if (caller?.waits) {
    for (const key of keys) {
      const { holders, queue } = await locks.status(key);
      if (holders.some((holder) => 'owner' in holder && isOf(holder.owner, owner.instanceId, caller))) return { outcome: 'busy', reason: 'heldByCaller', holders, queue, key };
    }
  }
  // What it has already gets another hold; of that, what is new is given back where the rest can't be had.
  const before = new Map(keys.map((key) => [key, (party.caller?.held ?? party.held).byKey(key)?.holds.includes(hold) ?? false]));
  const again = new Map<string, Lock>();
  for (const key of keys) {
    const lock = await takeAgain(locks, own, party, key, options, care);
    if (lock) again.set(key, lock);
  }
  const rest = keys.filter((key) => !again.has(key));
  const renewal = care.keepAlive && own.told !== 'not' ? { renewEveryMs: renewEveryMs(options.ttlMs) } : {};
  const groupId = [...again.keys()].map((key) => own.held.byKey(key)?.group)[0];
  if (rest.length === 0) return { outcome: 'acquired', lockId: regroup(own.held, keys, groupId ?? randomUUID()), locks: keys.map((key) => again.get(key) as Lock), again: true };
  const lockId = randomUUID();
  const undoHolds = async () => await undo([...again.values()].filter(({ key }) => !before.get(key)).map((lock) => ({ entry: entryOf(lock), party })));
  let answer: Awaited<ReturnType<Locks['acquireAll']>>;
  try {
    answer = await locks.acquireAll(rest, { ...options, ...renewal, owner, hold, lockId });
  } catch (error) {
    await undoHolds();
    return await Promise.reject(error);
  }
  if (answer.outcome !== 'acquired') {
    await undoHolds();
    return answer;
  }
  for (const lock of answer.locks) {
    record(party, lock, own, care);
    again.set(lock.key, lock);
  }
  return { outcome: 'acquired', lockId: regroup(own.held, keys, lockId), locks: keys.map((key) => again.get(key) as Lock), again: false };
}

/** Locks that were taken together are found by the id of the whole too. */
function regroup(held: HeldLocks, keys: string[], group: string): string {
  for (const key of keys) {
    const known = held.byKey(key);
    if (known) known.group = group;
  }
  return group;
}

/** Waits in the place of an earlier wait that timed out, if that was kept. */
async function waitInPlace(context: IExecuteFunctions, { locks, server }: Redis, key: string, options: AcquireOptions, once: boolean): Promise<Acquired> {
  const places = placesOf(context);
  const name = JSON.stringify([server, key]);
  const lockId = options.keepPlaceMs === undefined ? undefined : places[name];
  const asked = { ...options, ...(lockId !== undefined && { lockId }) };
  const answer = await (once ? locks.acquireOnce(key, asked) : locks.acquire(key, asked));
  if (answer.outcome === 'timedOut' && answer.lockId !== undefined) places[name] = answer.lockId;
  else delete places[name];
  return answer;
}

/** Whether there is no room as long as the calling execution has what it has, whoever else goes. */
function callerIsInTheWay(holders: Array<Holder | ForeignHolder>, instanceId: string | undefined, caller: CallingExecution, { mode, limit = 1 }: AcquireOptions): boolean {
  const its = holders.filter((holder): holder is Holder => 'owner' in holder && isOf(holder.owner, instanceId, caller));
  if (mode === 'shared') return its.some((holder) => holder.mode === 'exclusive');
  return its.length >= Math.min(limit, ...its.map((holder) => holder.limit));
}

const isOf = (owner: Owner, instanceId: string | undefined, { executionId }: CallingExecution) =>
  owner.executionId === executionId && owner.instanceId === instanceId;

async function takeAgain(locks: Locks, own: Own, party: Party, key: string, { ttlMs, mode }: Pick<AcquireOptions, 'ttlMs' | 'mode'>, care: Care): Promise<Lock | undefined> {
  const { owner, hold, held, caller } = party;
  const known = caller ? (caller.held?.byKey(key) ?? (await inIndex(locks, owner, key))) : held.byKey(key);
  if (!known) return undefined;
  const shared = mode === 'shared';
  if (known.lost === undefined && (known.shared === true) !== shared) throw new OtherMode(key, shared);
  const lock = locks.resume(key, { ...known, hold, owner });
  // The lease of a caller is not made shorter by one whom it called.
  const wanted = caller ? Math.max(ttlMs, known.ttlMs ?? 0) : ttlMs;
  const renewed = { ...(care.keepAlive && own.told !== 'not' && { renewEveryMs: renewEveryMs(wanted) }) };
  const beat = await lock.heartbeat(wanted, renewed);
  if (beat.outcome === 'lost') {
    held.drop(known.lockId);
    caller?.held?.drop(known.lockId);
    return undefined;
  }
  const { fencingToken, expiresAt } = beat;
  record(party, { key, lockId: known.lockId, fencingToken, ttlMs: beat.ttlMs }, own, care, { shared });
  Object.assign(lock.grant, { fencingToken, expiresAt, ttlMs: beat.ttlMs });
  return lock;
}

/** A lock of the calling execution that no node of it in this process knows of. */
async function inIndex(locks: Locks, { instanceId, executionId }: Owner, key: string): Promise<{ lockId: string; ttlMs?: number; fencingToken?: number; shared?: boolean; lost?: string } | undefined> {
  if (!instanceId || !executionId) return undefined;
  const entry = (await locks.heldBy({ instanceId, executionId })).find((each) => each.key === key);
  if (!entry) return undefined;
  const { holders } = await locks.status(key);
  return { ...entry, shared: holders.some((holder) => 'mode' in holder && holder.mode === 'shared') };
}

/** Gives back what a run of the node was granted and will not use. With Redis away that takes its time limit, and the leases end by themselves. */
export async function undo(granted: Array<{ entry: Entry; party: Party }>): Promise<void> {
  const all = granted.flatMap(({ entry, party }) => entry.locks.map((lock) => ({ lock, party })));
  for (const { lock, party } of all) forget(party, lock.lockId, party.hold);
  await Promise.all(all.map(async ({ lock }) => await lock.release().catch(() => {})));
}

/** A hold was given back, or (no `hold`) the lock is gone. */
export function forget({ held, caller }: { held: HeldLocks; caller?: { held: HeldLocks | undefined } }, lockId: string, hold?: string): void {
  held.drop(lockId, hold);
  caller?.held?.drop(lockId, hold);
}

/** What an item says of whose lock it is, where that is not this execution. */
export const partyFields = ({ caller, hold }: Party): IDataObject => (caller ? { heldFor: caller.execution.executionId, hold } : {});

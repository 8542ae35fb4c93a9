import type { IDataObject, INodeProperties } from 'n8n-workflow';
import type { AlreadyReleased, By, Locks, NotHeld, Owner, Released } from '../../../engine';
import type { Redis } from '../connection';
import { identityOf, itemError } from '../execution';
import type { HeldLocks } from '../held';
import { holderField, lossFields, membersOf, type CarriedLock } from '../lockField';
import { heldByCaller, type Own } from '../lookAfter';
import { byName, callerField, doneFields, optionsField, outputField, readDone, readIsForCaller, targetFields } from '../parameters';
import { withOuter, type OperationModule, type Run } from '../run';
import { forget } from '../take';
import { OncePerLock, chooseAll, fromItem, readTarget, whole, type Chosen, type Target } from './targets';

export const description: INodeProperties[] = [
  ...targetFields('Release', 'Release the innermost lock that the incoming item carries; if it carries none, what the one Acquire node took that holds any', [
    { name: 'All Locks of an Execution', value: 'otherExecution', description: 'Release everything that another execution held and did not give back. Made for an error workflow; safe to repeat.' },
  ]),
  {
    displayName: 'Execution ID',
    name: 'executionId',
    type: 'string',
    required: true,
    default: '={{ $json.execution.id }}',
    displayOptions: { show: { target: ['otherExecution'] } },
    description: 'The execution whose locks are released, as an Error Trigger gives it. Where it was a retry, those of the execution that it retried go with it.',
  },
  {
    displayName:
      '<b>Released</b>: the next one may enter. <b>Not Held</b>: the lock was not this execution\'s any more; if <code>lock.overlapped</code> is true another execution was in the same section.',
    name: 'outputsNotice',
    type: 'notice',
    default: '',
  },
  optionsField(byName([outputField, callerField, ...doneFields])),
];

interface Request {
  target: Target;
  /** Undefined: what Acquire Once took is not remembered as done. */
  done?: { result?: unknown };
  /** Of the locks of the execution that called this one. */
  forCaller: boolean;
}

export const release: OperationModule<Request> = {
  description,
  read: (run, index) => ({ target: readTarget(run, index), forCaller: readIsForCaller(run.context, index), done: readDone(run.context, index) }),
  execute,
};

/** How one lock ended. */
type Ending = { lock: Chosen; result: Released | AlreadyReleased | (Omit<NotHeld, 'reason' | 'by'> & { reason: string; by?: By }); holder?: IDataObject; /** Remembered as done for so long. */ markedMs?: number };

async function execute(run: Run, requests: Map<number, Request>, redis: Redis, { held }: Own): Promise<void> {
  const { locks } = redis;
  // Decided for all items before the first release changes what is held.
  const neverHeld = new Set<number>();
  const plan = await chooseAll(run, requests, redis, held, (index) => {
    const chosen = chooseToRelease(run, index, held);
    if (chosen !== 'neverHeld') return chosen;
    neverHeld.add(index);
    return [];
  });
  const ofCaller = heldByCaller(run.context, redis);
  const once = new OncePerLock((lock) => giveBack(locks, held, ofCaller, lock, identityOf(run.context)));
  for (const [index, { target, done }, chosen] of plan) {
    if (chosen === undefined) continue;
    if (neverHeld.has(index)) settleNeverHeld(run, index);
    else if (target.by === 'otherExecution') await freeExecution(run, index, target.executionId, locks);
    else settle(run, index, await Promise.all(chosen.map((lock) => once.get({ ...lock, done }))));
  }
}

/** @returns undefined when the item failed */
function chooseToRelease(run: Run, index: number, held: HeldLocks): Chosen[] | 'neverHeld' | undefined {
  const [innermost] = run.open(index);
  if (innermost) return innermost.protected === false ? 'neverHeld' : fromItem(innermost, held);
  const nodes = [...new Set(held.all().flatMap(({ holds }) => holds))];
  if (nodes.length > 1) {
    run.results.fail(index, severalNodes(run, index, nodes));
    return undefined;
  }
  const [node] = nodes;
  if (node !== undefined) return held.byNode(node).map((lock) => ({ ...whole(lock), hold: node }));
  // Nothing is held any more. An item whose lock was released before hears that it was.
  const last = run.last(index);
  return last?.lockId === undefined ? [] : fromItem(last, held);
}

function severalNodes({ context }: Run, index: number, nodes: string[]) {
  const names = nodes.map((name) => `"${name}"`).join(', ');
  return itemError(
    context,
    `Which Lock (item ${index}) is Automatic, but the item carries no lock and several nodes of this execution hold some: ${names}. Choose "By Acquire Node" and one of them, or "All of This Execution".`,
    index,
  );
}

async function giveBack(locks: Locks, held: HeldLocks, ofCaller: HeldLocks | undefined, lock: Chosen, self: Owner): Promise<Ending> {
  const { key, lockId, fencingToken, hold } = lock;
  const known = held.byId(lockId);
  // In the index of whose it is.
  const owner = known?.executionId === undefined ? self : { ...self, executionId: known.executionId };
  const lost = known?.lost;
  const elsewhere = known ?? ofCaller?.byId(lockId);
  const rememberMs = elsewhere?.rememberMs ?? lock.rememberMs ?? (lock.done && !elsewhere ? await rememberMsOf(locks, key) : undefined);
  const mark = lock.done && rememberMs ? { doneForMs: rememberMs, ...lock.done } : undefined;
  const result = await locks.resume(key, { lockId, fencingToken, hold, owner }).release(mark);
  forget({ held, ...(ofCaller && { caller: { held: ofCaller } }) }, lockId, result.outcome === 'released' && result.holdsLeft > 0 ? hold : undefined);
  // It ended with the execution that this one retries, so what was done here was not protected.
  if (result.outcome === 'alreadyReleased' && lost !== undefined) {
    return { lock, result: { outcome: 'notHeld', reason: lost, at: 0 }, holder: await whoHas(locks, key, self) };
  }
  if (result.outcome !== 'notHeld') return { lock, result, ...(mark && { markedMs: mark.doneForMs }) };
  return { lock, result, holder: result.by ? lossFields(self.executionId, result.by) : await whoHas(locks, key, self) };
}

/** What its holder noted, where neither the execution nor the item knows. Wrong only for one that is not given back then. */
async function rememberMsOf(locks: Locks, key: string): Promise<number | undefined> {
  const [holder] = (await locks.status(key)).holders;
  return holder && 'owner' in holder ? holder.owner.rememberMs : undefined;
}

/** Nobody took it from this one, but somebody may have entered since. */
async function whoHas(locks: Locks, key: string, self: Owner): Promise<IDataObject | undefined> {
  const { holders } = await locks.status(key);
  const holder = holderField(holders.find((each) => !('owner' in each) || each.owner.executionId !== self.executionId));
  return holder && { holder };
}

/** Frees what another execution held, as far as it is still its own. */
async function freeExecution({ context, items, results, open }: Run, index: number, executionId: string, locks: Locks): Promise<void> {
  const { instanceId } = identityOf(context);
  if (!instanceId) {
    return results.fail(index, itemError(context, `Which Lock (item ${index}): this n8n does not tell its instance ID, without which the locks of an execution can't be told from those of another n8n. Release by key or lock ID.`, index));
  }
  // As an Error Trigger has it.
  const failed = items[index]?.json.execution as { id?: unknown; retryOf?: unknown } | undefined;
  const retried = String(failed?.id) === executionId && failed?.retryOf ? [String(failed.retryOf)] : [];
  const found: Array<{ key: string; outcome: string }> = [];
  for (const id of [executionId, ...retried]) found.push(...(await locks.releaseExecution({ instanceId, executionId: id })));
  const keys = (outcomes: string[]) => [...new Set(found.filter(({ outcome }) => outcomes.includes(outcome)).map(({ key }) => key))];
  const freed = keys(['released']);
  const lock = {
    released: true,
    ofExecution: executionId,
    keys: freed,
    ...(freed.length === 0 ? { alreadyReleased: true } : {}),
    ...(keys(['notHeld']).length > 0 ? { notHeld: keys(['notHeld']) } : {}),
  };
  results.put(index, 'Released', withOuter(lock, open(index)[0]));
}

function settle(run: Run, index: number, endings: Ending[]): void {
  const open = run.open(index);
  const notHeld = endings.find(({ result }) => result.outcome === 'notHeld');
  const shown = notHeld ?? endings[0];
  if (!shown) {
    const lock = { released: false, reason: 'nothingHeld', overlapped: false };
    return run.results.put(index, 'Not Held', withOuter(lock, open[0]));
  }
  const several = endings.length > 1 ? { keys: endings.map(({ lock }) => lock.key) } : {};
  // The entry that the item carries for this lock ends; what was inside it has ended before, what is outside stays.
  const carried = [...open, run.last(index)];
  const entry = carried.find((each) => each && membersOf(each).some(({ lockId }) => lockId === shown.lock.lockId));
  const names = entry?.locks ? namesOfEntry(entry) : {};
  const lock = { ...(entry ?? (open[0] ? { outer: open[0] } : {})), ...fields(shown), ...several, ...names };
  run.results.put(index, notHeld ? 'Not Held' : 'Released', lock);
}

/** One lock of several keys stays one. */
const namesOfEntry = ({ lockId, keys }: CarriedLock): IDataObject => ({ key: undefined, fencingToken: undefined, lockId, keys });

function fields({ lock: { key, lockId, fencingToken }, result, holder, markedMs }: Ending): IDataObject {
  const common: IDataObject = { key, lockId, ...(fencingToken ? { fencingToken } : {}) };
  if (result.outcome === 'notHeld') {
    return { ...common, released: false, reason: result.reason, overlapped: holder !== undefined, ...holder };
  }
  if (result.outcome === 'alreadyReleased') return { ...common, released: true, alreadyReleased: true };
  return {
    ...common,
    released: true,
    ...(result.expiredBefore ? { expiredBefore: true } : {}),
    ...(result.holdsLeft > 0 ? { holdsLeft: result.holdsLeft } : {}),
    ...(markedMs && result.holdsLeft === 0 ? { rememberedAsDoneSeconds: markedMs / 1000 } : {}),
  };
}

/** The item passed Acquire without the lock, by the choice "Continue Without the Lock". */
function settleNeverHeld(run: Run, index: number): void {
  run.results.put(index, 'Not Held', {
    ...run.open(index)[0],
    released: false,
    reason: 'neverHeld',
    neverHeld: true,
    overlapped: true,
  });
}

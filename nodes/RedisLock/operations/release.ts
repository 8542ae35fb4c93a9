import type { IDataObject, INodeProperties } from 'n8n-workflow';
import type { AlreadyReleased, Locks, NotHeld, Owner, Released } from '../../../engine';
import type { Redis } from '../connection';
import { identityOf, itemError, type HeldLocks } from '../execution';
import { byField, holderField } from '../lockField';
import { optionsField, outputField, targetFields } from '../parameters';
import { withOuter, type OperationModule, type Run } from '../run';
import { OncePerLock, choose, fromItem, readTarget, whole, type Chosen, type Target } from './targets';

export const description: INodeProperties[] = [
  ...targetFields('Release', 'Release the innermost lock that the incoming item carries; if it carries none, what the one Acquire node took that holds any'),
  {
    displayName:
      '<b>Released</b>: the next one may enter. <b>Not Held</b>: the lock was not this execution\'s any more; if <code>lock.overlapped</code> is true another execution was in the same section.',
    name: 'outputsNotice',
    type: 'notice',
    default: '',
  },
  optionsField([outputField]),
];

interface Request {
  target: Target;
}

export const release: OperationModule<Request> = {
  description,
  read: (run, index) => ({ target: readTarget(run, index) }),
  execute,
};

/** How one lock ended. */
type Ending = { lock: Chosen; result: Released | AlreadyReleased | NotHeld; holder?: IDataObject };

async function execute(run: Run, requests: Map<number, Request>, { locks }: Redis, held: HeldLocks): Promise<void> {
  // Decided for all items before the first release changes what is held.
  const plan = [...requests].map(([index, { target }]) => ({ index, chosen: chooseToRelease(run, index, target, held) }));
  const once = new OncePerLock((lock) => giveBack(locks, held, lock, identityOf(run.context)));
  for (const { index, chosen } of plan) {
    if (chosen === undefined) continue;
    if (chosen === 'neverHeld') settleNeverHeld(run, index);
    else settle(run, index, await Promise.all(chosen.map((lock) => once.get(lock))));
  }
}

/** @returns undefined when the item failed */
function chooseToRelease(run: Run, index: number, target: Target, held: HeldLocks): Chosen[] | 'neverHeld' | undefined {
  if (target.by !== 'auto') return choose(run, index, target, held);
  const [innermost] = run.open(index);
  if (innermost) return innermost.protected === false ? 'neverHeld' : [fromItem(innermost)];
  const nodes = [...new Set(held.all().flatMap(({ holds }) => holds))];
  if (nodes.length > 1) {
    run.results.fail(index, severalNodes(run, index, nodes));
    return undefined;
  }
  const [node] = nodes;
  if (node !== undefined) return held.byNode(node).map((lock) => ({ ...whole(lock), hold: node }));
  // Nothing is held any more. An item whose lock was released before hears that it was.
  const last = run.last(index);
  return last?.lockId === undefined ? [] : [fromItem(last)];
}

function severalNodes({ context }: Run, index: number, nodes: string[]) {
  const names = nodes.map((name) => `"${name}"`).join(', ');
  return itemError(
    context,
    `Which Lock (item ${index}) is Automatic, but the item carries no lock and several nodes of this execution hold some: ${names}. Choose "By Acquire Node" and one of them, or "All of This Execution".`,
    index,
  );
}

async function giveBack(locks: Locks, held: HeldLocks, lock: Chosen, owner: Owner): Promise<Ending> {
  const { key, lockId, fencingToken, hold } = lock;
  const result = await locks.resume(key, { lockId, fencingToken, hold, owner }).release();
  held.drop(lockId, result.outcome === 'released' && result.holdsLeft > 0 ? hold : undefined);
  if (result.outcome !== 'notHeld') return { lock, result };
  if (result.by) return { lock, result, holder: byField(result.by) };
  // Nobody took it from this one, but somebody may have entered since.
  const { holders } = await locks.status(key);
  return { lock, result, holder: holderField(holders[0]) };
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
  const entry = carried.find((each) => each?.lockId === shown.lock.lockId);
  const lock = { ...(entry ?? (open[0] ? { outer: open[0] } : {})), ...fields(shown), ...several };
  run.results.put(index, notHeld ? 'Not Held' : 'Released', lock);
}

function fields({ lock: { key, lockId, fencingToken }, result, holder }: Ending): IDataObject {
  const common: IDataObject = { key, lockId, ...(fencingToken ? { fencingToken } : {}) };
  if (result.outcome === 'notHeld') {
    return { ...common, released: false, reason: result.reason, overlapped: holder !== undefined, ...(holder ? { holder } : {}) };
  }
  if (result.outcome === 'alreadyReleased') return { ...common, released: true, alreadyReleased: true };
  return {
    ...common,
    released: true,
    ...(result.expiredBefore ? { expiredBefore: true } : {}),
    ...(result.holdsLeft > 0 ? { holdsLeft: result.holdsLeft } : {}),
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

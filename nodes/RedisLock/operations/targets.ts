import type { IExecuteFunctions } from 'n8n-workflow';
import { itemError, type HeldLocks } from '../execution';
import type { CarriedLock } from '../lockField';
import { readKey, readText } from '../parameters';
import type { Run } from '../run';

/** Which lock a Heartbeat or Release is about. */
export type Target =
  | { by: 'auto' }
  | { by: 'execution' }
  | { by: 'node'; node: string }
  | { by: 'key'; key: string }
  | { by: 'lockId'; lockId: string; key?: string };

/** A lock to be asked about. `hold`: give back only that hold; absent: the whole lock. */
export interface Chosen {
  key: string;
  lockId: string;
  fencingToken?: number;
  hold?: string;
}

export function readTarget({ context }: Run, index: number): Target {
  const by = context.getNodeParameter('target', index, 'auto') as Target['by'];
  switch (by) {
    case 'node':
      return { by, node: readText(context, 'acquiredBy', 'Acquire Node', index) };
    case 'key':
      return { by, key: readKey(context, index) };
    case 'lockId': {
      const lockId = readText(context, 'lockId', 'Lock ID', index);
      const hasKey = ![undefined, null, ''].includes(context.getNodeParameter('key', index, '') as string);
      return { by, lockId, ...(hasKey ? { key: readKey(context, index) } : {}) };
    }
    case 'auto':
    case 'execution':
      return { by };
    default:
      throw itemError(context, `Which Lock (item ${index}) is "${String(by)}", which this version does not know. Choose one from the list.`, index);
  }
}

/** What was asked for explicitly (all but `auto`), as far as it is known. */
export function choose(run: Run, index: number, target: Exclude<Target, { by: 'auto' }>, held: HeldLocks): Chosen[] {
  switch (target.by) {
    case 'execution':
      return held.all().map(whole);
    case 'node':
      return held.byNode(target.node).map((lock) => ({ ...whole(lock), hold: target.node }));
    case 'key': {
      const known = held.byKey(target.key);
      if (known) return [whole(known)];
      return run
        .open(index)
        .filter(({ key, lockId }) => key === target.key && lockId !== undefined)
        .map(fromItem)
        .slice(0, 1);
    }
    case 'lockId':
      return [byLockId(run, index, target, held)];
  }
}

function byLockId(run: Run, index: number, { lockId, key }: Extract<Target, { by: 'lockId' }>, held: HeldLocks): Chosen {
  const known = held.byId(lockId);
  if (known) return whole(known);
  const onItem = run.open(index).find((lock) => lock.lockId === lockId);
  if (onItem) return { ...fromItem(onItem), hold: undefined };
  if (key) return { key, lockId };
  throw keyNeeded(run.context, index);
}

function keyNeeded(context: IExecuteFunctions, index: number) {
  return itemError(context, `Key (item ${index}) is empty. This execution did not acquire that lock ID, so the key of the lock is needed too.`, index);
}

export const whole = ({ key, lockId, fencingToken }: Chosen): Chosen => ({ key, lockId, fencingToken });

/** A lock that the item carries, with the hold of the node that took it. */
export function fromItem(lock: CarriedLock): Chosen {
  return { key: lock.key, lockId: lock.lockId ?? '', fencingToken: lock.fencingToken, hold: lock.acquiredBy };
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

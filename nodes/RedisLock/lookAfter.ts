import type { IExecuteFunctions } from 'n8n-workflow';
import type { Redis } from './connection';
import { callerOf, identityOf, onEnd, ownerOf, type EndIsTold } from './execution';
import { HeldLocks, ownerOfHeld, runDataOf, storeOf, type HeldLock } from './held';
import { Keeper, THIS_PROCESS, renewEveryMs, type Caretaker } from './keepAlive';

/** Where an execution meets the keeper of this process: its locks are renewed while it runs, and settled at its end. */

const keeper = new Keeper();

interface Met {
  caretaker: Caretaker;
  told: EndIsTold;
  /** Lock ids that this run of the execution knows to be its own. */
  taken: Set<string>;
}

/** By the run's own data: an execution that goes on after a Wait is another run, also in the same process. */
const runs = new WeakMap<object, Met>();

const nameOf = (instanceId: string | undefined, executionId: string | undefined) => JSON.stringify([instanceId, executionId]);

/** What a run of a node works with. */
export interface Own {
  held: HeldLocks;
  /** How much n8n tells of the end of this execution. */
  told: EndIsTold;
}

/** The locks of this execution in that Redis, looked after from now on. @throws RedisLockError */
export async function lookAfter(context: IExecuteFunctions, redis: Redis): Promise<Own> {
  const met = runs.get(runDataOf(context)) ?? meet(context);
  const held = new HeldLocks(storeOf(context), redis.server, (lock) => take(met, redis, lock));
  // Of a run before a Wait, or of the execution that this one retries.
  const inherited = held.all().filter(({ lockId }) => !met.taken.has(lockId));
  await Promise.all(inherited.map(async (lock) => await goOn(context, redis, lock)));
  for (const lock of inherited) take(met, redis, lock);
  return { held, told: met.told };
}

function meet(context: IExecuteFunctions): Met {
  const { instanceId, executionId } = identityOf(context);
  const caretaker = keeper.create(nameOf(instanceId, executionId), storeOf(context), instanceId);
  const told = onEnd(context, async (ending, waitTill) => await caretaker.end(ending, waitTill));
  // Nobody would ever end it.
  if (told === 'not') caretaker.letGo();
  caretaker.waitsUnseen = told === 'only';
  const met = { caretaker, told, taken: new Set<string>() };
  runs.set(runDataOf(context), met);
  return met;
}

function take({ caretaker, taken }: Met, redis: Redis, lock: HeldLock): void {
  taken.add(lock.lockId);
  caretaker.connect(redis.server, redis.retain);
  caretaker.watch(lock);
}

/**
 * Goes on with a lock of an earlier run. In another process, and in a retry, it gets a new fencing token: should the
 * earlier run be alive after all, it is the one that lost.
 */
async function goOn(context: IExecuteFunctions, { locks }: Redis, lock: HeldLock): Promise<void> {
  const owner = ownerOf(context, lock.note);
  const isRetry = lock.executionId !== owner.executionId;
  if (lock.lost !== undefined || lock.ofCaller || (!isRetry && lock.process === THIS_PROCESS)) return;
  const { key, ttlMs, keepAlive } = lock;
  const result = await locks.inherit(key, { ...lock, owner: ownerOfHeld(lock, owner.instanceId) }, {
    ttlMs,
    owner: { ...owner, nodeName: lock.holds[0], rememberMs: lock.rememberMs },
    ...(keepAlive && { renewEveryMs: renewEveryMs(ttlMs) }),
  });
  if (result.outcome === 'lost') {
    lock.lost = isRetry && result.reason === 'notHeld' ? 'endedWithExecution' : result.reason;
    return;
  }
  Object.assign(lock, { fencingToken: result.lock.fencingToken, executionId: owner.executionId, process: THIS_PROCESS });
}

/** The locks of the execution that called this one, if a node of it has run in this process. */
export function heldByCaller(context: IExecuteFunctions, redis: Redis): HeldLocks | undefined {
  const caller = callerOf(context);
  const caretaker = caller && keeper.find(nameOf(identityOf(context).instanceId, caller.executionId));
  if (!caretaker) return undefined;
  return new HeldLocks(caretaker.store, redis.server, (lock) => {
    caretaker.connect(redis.server, redis.retain);
    caretaker.watch(lock);
  });
}

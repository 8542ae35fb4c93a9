import type { INodeProperties } from 'n8n-workflow';
import { randomUUID } from 'node:crypto';
import { RedisLockError, type Lock, type Locks, type NotStolen, type StealCondition } from '../../../engine';
import type { Redis } from '../connection';
import { itemError } from '../execution';
import type { Care } from '../held';
import { renewEveryMs } from '../keepAlive';
import { expiryFields, holderField, namesOf } from '../lockField';
import type { Own } from '../lookAfter';
import { readKeys } from '../keyParameter';
import { careFields, keysField, noteField, optionsField, outputField, readCare, readIsForCaller, readSeconds, ttlField } from '../parameters';
import { asNodeError, groupByKey, withOuter, type OperationModule, type Run } from '../run';
import { partyFields, partyOf, record, refuseLockForNobody, warnOfCare, type Party } from '../take';

export const description: INodeProperties[] = [
  keysField,
  ttlField,
  {
    displayName: 'Steal If',
    name: 'stealIf',
    type: 'options',
    default: 'stale',
    options: [
      { name: 'Anything Holds It', value: 'any', description: 'Whatever is there, if it is older than 5 seconds. The work of its holder may still be running.' },
      { name: 'It Has That Fencing Token', value: 'fencingToken', description: 'Exactly the holder that was seen: nobody who came since is robbed' },
      { name: 'It Is Stale', value: 'stale', description: 'Its holder was not heard of for a time' },
      { name: 'It Never Expires', value: 'noTtl', description: 'A key without a TTL that something else than Redis Lock left behind' },
    ],
    description: 'Which lock may be taken over. Exactly one of several executions that try wins.',
  },
  {
    displayName: 'Stale After',
    name: 'staleAfter',
    type: 'number',
    typeOptions: { minValue: 0 },
    default: 0,
    displayOptions: { show: { stealIf: ['stale'] } },
    description: 'Seconds without a Heartbeat. 0: only a holder that announced regular renewals and missed three.',
  },
  {
    displayName: 'Fencing Token',
    name: 'fencingToken',
    type: 'number',
    default: 0,
    displayOptions: { show: { stealIf: ['fencingToken'] } },
    description: 'Of the holder that was seen, for example {{ $JSON.lock.holder.fencingToken }}',
  },
  {
    displayName:
      '<b>Stolen</b>: this execution holds the lock now; the previous holder is told at its next Heartbeat or Release, but its work may still be running. <b>Not Stolen</b>: nothing was changed; <code>lock.reason</code> says why.',
    name: 'outputsNotice',
    type: 'notice',
    default: '',
  },
  optionsField([...careFields, noteField, outputField]),
];

interface Request {
  keys: string[];
  /** What stands for them. */
  key: string;
  ttlMs: number;
  if: StealCondition;
  staleMs?: number;
  care: Care;
  forCaller: boolean;
}

export const steal: OperationModule<Request> = { description, read, execute };

function read({ context }: Run, index: number): Request {
  const stealIf = context.getNodeParameter('stealIf', index, 'stale') as string;
  const staleMs = stealIf === 'stale' ? readSeconds(context, 'staleAfter', 'Stale After', index, { least: 0 }) : 0;
  const keys = readKeys(context, index);
  if (keys.length > 1 && stealIf === 'fencingToken') {
    throw itemError(context, `Steal If (item ${index}) can be a fencing token for one key only, and Key is a list of ${keys.length}. Choose another condition, or take one key.`, index);
  }
  return {
    keys,
    key: keys.join('\n'),
    ttlMs: readSeconds(context, 'ttl', 'TTL', index, { least: 1 }),
    if: stealIf === 'fencingToken' ? { fencingToken: readFencingToken(context, index) } : (stealIf as StealCondition),
    staleMs: staleMs > 0 ? staleMs : undefined,
    care: readCare(context, index),
    forCaller: readIsForCaller(context, index),
  };
}

function readFencingToken(context: Run['context'], index: number): number {
  const token = Number(context.getNodeParameter('fencingToken', index, 0));
  if (Number.isSafeInteger(token) && token > 0) return token;
  throw itemError(
    context,
    `Fencing Token (item ${index}) must be the number of the holder that was seen, such as {{ $json.lock.holder.fencingToken }} behind Busy.`,
    index,
  );
}

async function execute(run: Run, requests: Map<number, Request>, redis: Redis, own: Own): Promise<void> {
  const { context, results } = run;
  const groups = groupByKey(requests);
  const parties = new Map<string, Party>();
  for (const [key, [[index, { care, forCaller }]]] of groups as Array<[string, [[number, Request]]]>) {
    const party = partyOf(context, redis, own, forCaller, care.note, index);
    refuseLockForNobody(context, party, care, index);
    parties.set(key, party);
  }
  for (const [key, members] of groups) {
    const [, request] = members[0] as [number, Request];
    const party = parties.get(key) as Party;
    const answer = await take(redis.locks, request, party, own).catch((error: unknown) =>
      error instanceof RedisLockError && error.code !== 'wrongType' ? Promise.reject(error) : { outcome: 'failed' as const, error },
    );
    if (answer.outcome === 'stolen') {
      for (const lock of answer.locks) record(party, lock, own, request.care).group = answer.locks.length > 1 ? answer.lockId : undefined;
    }
    for (const [index] of members) {
      const [outer] = run.open(index);
      if (answer.outcome === 'failed') {
        results.fail(index, asNodeError(context, answer.error, index));
      } else if (answer.outcome === 'stolen') {
        const { lockId, locks } = answer;
        const { ttlMs, expiresAt } = (locks[0] as Lock).grant;
        const lock = {
          stolen: true, acquired: true, ...namesOf(lockId, locks), ...expiryFields(ttlMs, expiresAt),
          acquiredBy: context.getNode().name, ...partyFields(party), previousHolder: holderField(locks.find(({ grant }) => grant.robbed)?.grant.robbed),
        };
        results.put(index, 'Stolen', withOuter(lock, outer));
      } else {
        const { reason, queue, holders } = answer;
        const lock = { stolen: false, acquired: false, key: answer.key ?? key, ...(request.keys.length > 1 ? { keys: request.keys } : {}), reason, queueLength: queue, holder: holderField(holders[0]) };
        results.put(index, 'Not Stolen', withOuter(lock, outer));
      }
    }
  }
  const [first] = requests.values();
  if (first && own.held.byNode(context.getNode().name).length > 0) warnOfCare(context, own, first.care);
}

type Answer = { outcome: 'stolen'; lockId: string; locks: Lock[] } | (NotStolen & { key?: string });

async function take(locks: Locks, { keys, if: condition, ttlMs, staleMs, care }: Request, { owner, hold }: Party, { told }: Own): Promise<Answer> {
  const options = {
    if: condition, ttlMs, staleMs, owner, hold,
    ...(care.keepAlive && told !== 'not' && { renewEveryMs: renewEveryMs(ttlMs) }),
  };
  if (keys.length > 1) {
    const lockId = randomUUID();
    const answer = await locks.stealAll(keys, { ...options, lockId });
    return answer.outcome === 'stolen' ? { ...answer, lockId } : answer;
  }
  const answer = await locks.steal(String(keys[0]), options);
  return answer.outcome === 'stolen' ? { outcome: 'stolen', lockId: answer.lock.lockId, locks: [answer.lock] } : answer;
}

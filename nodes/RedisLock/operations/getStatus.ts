import type { INodeProperties } from 'n8n-workflow';
import { RedisLockError } from '../../../engine';
import type { Redis } from '../connection';
import { doneField, holderField, permitFields } from '../lockField';
import { readKey } from '../keyParameter';
import { keyField, optionsField, outputField } from '../parameters';
import { asNodeError, groupByKey, withOuter, type OperationModule, type Run } from '../run';

export const description: INodeProperties[] = [
  keyField,
  {
    displayName:
      'Changes nothing. <code>lock.state</code> is free, held, expiring, stale, foreign (something else than Redis Lock holds it), noTtl (the same, and it never ends by itself) or doneMark (free, and remembered as done by Acquire Once). It may be over when the next node runs: to enter, use Acquire.',
    name: 'outputsNotice',
    type: 'notice',
    default: '',
  },
  optionsField([outputField]),
];

interface Request {
  key: string;
}

export const getStatus: OperationModule<Request> = {
  description,
  read: ({ context }, index) => ({ key: readKey(context, index) }),
  execute,
};

async function execute(run: Run, requests: Map<number, Request>, { locks }: Redis): Promise<void> {
  const { context, results } = run;
  for (const [key, members] of groupByKey(requests)) {
    const answer = await locks
      .status(key)
      .catch((error: unknown) => (error instanceof RedisLockError && error.code !== 'wrongType' ? Promise.reject(error) : { error }));
    for (const [index] of members) {
      if ('error' in answer) {
        results.fail(index, asNodeError(context, answer.error, index));
        continue;
      }
      const { state, holders, holderCount, queue, fencingToken, done } = answer;
      const holder = holderField(holders[0]);
      const lock = { state, key, queueLength: queue, ...(fencingToken ? { fencingToken } : {}), ...permitFields(holders, holderCount), ...(holder ? { holder } : {}), ...(done ? { done: doneField(done) } : {}) };
      results.put(index, 'Status', withOuter(lock, run.open(index)[0]));
    }
  }
}

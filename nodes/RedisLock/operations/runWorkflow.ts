import type { IDataObject, INodeExecutionData, INodeProperties } from 'n8n-workflow';
import type { Redis } from '../connection';
import { itemError, runSubWorkflow, stopSignal } from '../execution';
import { acquiredFields, carried, lossFields } from '../lockField';
import type { Own } from '../lookAfter';
import { byName, careFields, keysField, noteField, optionsField, outputField, readText, ttlField } from '../parameters';
import { asNodeError, type OperationModule, type Run } from '../run';
import { forget, partyOf, undo, type Entry, type Party } from '../take';
import { contend, onTimeoutField, permitFieldsOfAcquire, policyFields, readContending, settleLoser, stealIfStaleField, TERMS, whenBusyFields, withoutContinue, type Contending } from './contend';

/** Options that have no meaning where the lock ends with the sub-workflow. */
const NOT_HERE = ['owner', 'releaseOnEnd'];

export const description: INodeProperties[] = [
  keysField,
  ttlField,
  ...whenBusyFields,
  {
    displayName: 'Workflow',
    name: 'workflowId',
    type: 'workflowSelector',
    required: true,
    default: '',
    description: 'The workflow to run while the lock is held. It needs an Execute Workflow Trigger.',
  },
  {
    displayName: 'Run',
    name: 'runOnce',
    type: 'options',
    default: 'all',
    options: [
      { name: 'Once With All Items', value: 'all', description: 'One lock, of the key that all items share, around one run' },
      { name: 'Once for Each Item', value: 'each', description: 'One item after the other, each with the lock of its own key' },
    ],
    description: 'How often the workflow runs',
  },
  {
    displayName:
      '<b>Done</b>: what the workflow gave out; the lock was given back. <b>Busy</b> and <b>Timed Out</b>: it did not run. A workflow that fails follows On Error in the settings, after the lock was given back. If it contains a Wait, put a Release behind Done: the lock is kept meanwhile, and nothing else of this node runs afterwards.',
    name: 'outputsNotice',
    type: 'notice',
    default: '',
  },
  optionsField(
    byName([...careFields.filter(({ name }) => !NOT_HERE.includes(name)), noteField, withoutContinue(onTimeoutField), outputField, ...permitFieldsOfAcquire, ...policyFields, stealIfStaleField]),
  ),
];

interface Request extends Contending {
  workflowId: string;
  runOnce: 'all' | 'each';
}

export const runWorkflow: OperationModule<Request> = { description, read, execute };

function read({ context }: Run, index: number): Request {
  const contending = readContending(context, index);
  const runOnce = context.getNodeParameter('runOnce', index, 'all') as Request['runOnce'];
  if (runOnce !== 'all' && runOnce !== 'each') {
    throw itemError(context, `Run (item ${index}) is "${String(runOnce)}", which this version does not know. Choose one from the list.`, index);
  }
  return { ...contending, workflowId: readText(context, 'workflowId', 'Workflow', index, 'Choose a workflow from the list.'), runOnce };
}

async function execute(run: Run, requests: Map<number, Request>, redis: Redis, own: Own): Promise<void> {
  const all = [...requests];
  const first = all[0]?.[1];
  if (!first) return;
  const sections = first.runOnce === 'each' ? all.map((each) => [each]) : [all];
  refuseSeveral(run, requests, first);
  for (const section of sections) {
    const members = section.filter(([index]) => requests.has(index));
    // Whatever waits now goes on by n8n's own means, which knows of one workflow only.
    if (members.length > 0 && (await runSection(run, members, redis, own)) === 'waits') return;
  }
}

/** One lock can't be of several keys, nor one run of several workflows. */
function refuseSeveral({ context, results }: Run, requests: Map<number, Request>, first: Request): void {
  if (first.runOnce === 'each') return;
  const terms: Array<[string, (request: Request) => string]> = [['Key', ({ key }) => key], ['Workflow', ({ workflowId }) => workflowId], ...TERMS];
  for (const [index, request] of [...requests]) {
    const differs = terms.find(([, of]) => of(request) !== of(first));
    if (!differs) continue;
    const [name, of] = differs;
    const message = `${name} (item ${index}) is "${of(request)}", but "${of(first)}" for the first item: Once With All Items has one for all. Choose Once for Each Item.`;
    results.fail(index, itemError(context, message, index));
    requests.delete(index);
  }
}

type Member = [number, Request];

async function runSection(run: Run, members: Member[], redis: Redis, own: Own): Promise<'done' | 'waits'> {
  const { context } = run;
  const [index, request] = members[0] as Member;
  const party = partyOf(context, redis, own, false, request.care.note, index);
  const stop = stopSignal(context);
  const lock = await enter(run, members, redis, own, party, stop.signal).finally(() => stop.dispose());
  if (!lock) return 'done';

  let output: SubRun | { error: unknown };
  try {
    output = await runSubWorkflow(context, request.workflowId, members.map(([i]) => run.items[i] as INodeExecutionData));
  } catch (error) {
    output = { error };
  }
  // The caretaker has the lock until the execution ends, or a Release comes.
  if ('waits' in output && output.waits) return 'waits';
  const lost = await leave(lock, party, own);
  if ('error' in output) {
    for (const [i] of members) run.results.fail(i, asNodeError(context, output.error, i));
    return 'done';
  }
  if (lost?.lost && request.care.stopWhenLost) {
    for (const [i] of members) run.results.fail(i, itemError(context, lossMessage(lock, String(lost.reason)), i));
    return 'done';
  }
  putDone(run, members, output.items, { ...acquiredFields(lock.lockId, lock.locks), acquiredBy: context.getNode().name, released: true, ...lost });
  return 'done';
}

type SubRun = { items: INodeExecutionData[]; waits: boolean };

/** @returns nothing where the items have left by another output */
async function enter(run: Run, members: Member[], redis: Redis, own: Own, party: Party, signal: AbortSignal): Promise<Entry | undefined> {
  const [, request] = members[0] as Member;
  const answer = await contend(run.context, redis, own, party, request, performance.now(), signal);
  if (answer.outcome === 'acquired') {
    if (!signal.aborted) return answer;
    await undo([{ entry: answer, party }]);
    throw signal.reason;
  }
  if (answer.outcome === 'failed' && signal.aborted) throw answer.error;
  if (answer.outcome === 'doneBefore') return undefined; // of Acquire Once only
  for (const [index, each] of members) settleLoser(run, index, each, answer);
  return undefined;
}

/** Gives the lock back, of each key. @returns what to say of one that was lost meanwhile */
async function leave({ locks }: Entry, party: Party, { held }: Own): Promise<IDataObject | undefined> {
  const ends = await Promise.all(
    locks.map(async (lock): Promise<IDataObject | undefined> => {
      const lost = held.byId(lock.lockId)?.lost;
      forget(party, lock.lockId, party.hold);
      // With Redis away the lease ends by itself; the work is done all the same.
      const result = await lock.release().catch(() => undefined);
      if (result?.outcome === 'notHeld') return { released: false, lost: true, reason: lost ?? result.reason, ...lossFields(party.owner.executionId, result.by) };
      if (lost !== undefined) return { released: false, lost: true, reason: lost };
      return result === undefined ? { released: false, reason: 'unavailable' } : undefined;
    }),
  );
  return ends.find((end) => end?.lost) ?? ends.find((end) => end !== undefined);
}

const lossMessage = ({ locks }: Entry, reason: string) =>
  `The lock "${locks.map(({ key }) => key).join('", "')}" was lost while the workflow ran (${reason}), so somebody else may have worked on the same thing. Check what was done, and see Get Status for who has the lock now.`;

/** What the workflow gave out, with what the lock has to say. */
function putDone(run: Run, members: Member[], items: INodeExecutionData[], lock: IDataObject): void {
  const indexes = members.map(([index]) => index);
  const [first = 0] = indexes;
  const field = run.field(first);
  const pairs = items.length === indexes.length ? indexes : undefined;
  run.results.putAll(
    first,
    'Done',
    items.map((item, i) => {
      const own = carried(item, field) === 'foreign' ? {} : { [field]: lock };
      const pairedItem = pairs ? { item: pairs[i] as number } : indexes.map((index) => ({ item: index }));
      return { json: { ...item.json, ...own }, ...(item.binary && { binary: item.binary }), pairedItem };
    }),
  );
  for (const index of indexes.slice(1)) run.results.putAll(index, 'Done', []);
}

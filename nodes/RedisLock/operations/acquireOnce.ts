import type { INodeProperties } from 'n8n-workflow';
import { itemError } from '../execution';
import { readKeyOrNone } from '../keyParameter';
import { byName, careFields, keyField, noteField, optionsField, outputField, readIsForCaller, readOptions, show, toMs, ttlField } from '../parameters';
import type { OperationModule, Run } from '../run';
import { execute, type Request } from './acquire';
import { keepPlaceField, onTimeoutField, readContending, stealIfStaleField, whenBusyFields, withoutContinue } from './contend';

/** Acquire, for what must be done once: the same event that comes again later is told that it was done. */

const DAY_S = 86_400;

export const description: INodeProperties[] = [
  { ...keyField, placeholder: 'e.g. orders:event:{{ $json.body.id }}', description: 'Name of what is to be done once, with the ID that its sender gave it. Deliveries with the same key are the same thing.' },
  ttlField,
  ...whenBusyFields,
  {
    displayName:
      '<b>Acquired</b>: it is yours to do. <b>Busy</b>: another execution is doing it. <b>Done Before</b>: it was done; <code>lock.done</code> says when and by which execution. When the execution succeeds, or a Release gives the lock back, it is remembered as done, for 24 hours unless you choose another time. A failed execution leaves no mark, so that a repetition gets through.',
    name: 'outputsNotice',
    type: 'notice',
    default: '',
  },
  optionsField(
    byName([
      ...careFields,
      keepPlaceField,
      noteField,
      withoutContinue(onTimeoutField),
      outputField,
      stealIfStaleField,
      {
        displayName: 'Remembered as Done For',
        name: 'rememberDone',
        type: 'number',
        typeOptions: { minValue: 1 },
        default: DAY_S,
        description: 'Seconds for which the same key takes Done Before after it was done. Longer than senders repeat: most do for some hours, some for days.',
      },
      {
        displayName: 'When the Key Is Missing',
        name: 'whenKeyMissing',
        type: 'options',
        default: 'error',
        options: [
          { name: 'Fail', value: 'error', description: 'An item without its ID is an error' },
          { name: 'Process Without Deduplication', value: 'process', description: 'Go on at Acquired without a lock, marked lock.deduplicated = false. Nothing is dropped, and it may be done twice.' },
        ],
        description: 'What to do with an item whose key is empty, or has an empty part',
      },
    ]),
  ),
];

export const acquireOnce: OperationModule<Request> = { description, read, execute };

function read({ context }: Run, index: number): Request {
  const { rememberDone = DAY_S, whenKeyMissing = 'error' } = readOptions(context, index);
  if (whenKeyMissing !== 'error' && whenKeyMissing !== 'process') {
    throw itemError(context, `When the Key Is Missing (item ${index}) is ${show(whenKeyMissing)}, which this version does not know. Choose one from the list.`, index);
  }
  const rememberMs = toMs(context, rememberDone, 'Remembered as Done For', index, { least: 1 });
  const forCaller = readIsForCaller(context, index);
  const { key, missing } = readKeyOrNone(context, index);
  if (missing && whenKeyMissing === 'error') throw missing;
  const contending = readContending(context, index, { keys: [missing ? 'none' : key] });
  return { ...contending, forCaller, unprotected: missing !== undefined, care: { ...contending.care, rememberMs } };
}

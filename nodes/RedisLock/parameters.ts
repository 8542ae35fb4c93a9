import type { IDataObject, IExecuteFunctions, INodeProperties, INodePropertyOptions, NodeOperationError } from 'n8n-workflow';
import { itemError, workflowLimitMs } from './execution';
import type { Care, ReleaseOnEnd } from './held';

/** Parameters that several operations share, and the reading of all: bad input is refused before Redis is asked. */

const LONGEST_TTL_S = 30 * 86_400;

export const keyField: INodeProperties = {
  displayName: 'Key',
  name: 'key',
  type: 'string',
  required: true,
  default: '',
  placeholder: 'e.g. w4ingest:lock:{{ $json.folder }}',
  description:
    'Name of the lock: executions with the same key exclude each other. Take the workflow, "lock" and the ID of the thing that is protected; as narrow as that thing.',
};

export const ttlField: INodeProperties = {
  displayName: 'TTL',
  name: 'ttl',
  type: 'number',
  typeOptions: { minValue: 1, maxValue: LONGEST_TTL_S },
  default: 600,
  description:
    'Seconds until the lock frees itself if it is neither released nor renewed, for example because n8n was killed. Longer than the longest run, or than the longest gap between two Heartbeats.',
};

export const noteField: INodeProperties = {
  displayName: 'Note',
  name: 'note',
  type: 'string',
  default: '',
  description: 'A text for whoever finds the lock held: it is shown with the holder',
};

export const outputField: INodeProperties = {
  displayName: 'Output Field',
  name: 'outputField',
  type: 'string',
  default: 'lock',
  description: 'Name of the field that this node adds to each item',
};

/** How a lock is looked after until its execution ends; for Acquire and Steal. */
export const careFields: INodeProperties[] = [
  {
    displayName: 'Grace After Stop',
    name: 'stopGrace',
    type: 'number',
    typeOptions: { minValue: 1 },
    default: 30,
    description: 'Seconds that the lock lasts after the execution was stopped or reached its time limit: code of other nodes may still be running then',
  },
  {
    displayName: 'Keep Alive',
    name: 'keepAlive',
    type: 'boolean',
    default: true,
    description: 'Whether to renew the lock every third of the TTL while the execution runs, so that a run may take longer than the TTL',
  },
  {
    displayName: 'Max Hold',
    name: 'maxHold',
    type: 'number',
    typeOptions: { minValue: 0 },
    default: 0,
    description: 'Seconds after which Keep Alive ends, so that a run that hangs does not hold the lock for ever. 0: the time limit of the workflow, or 24 hours.',
  },
  {
    displayName: 'Owner',
    name: 'owner',
    type: 'options',
    default: 'execution',
    options: [
      { name: 'Calling Execution', value: 'caller', description: 'In a sub-workflow: the lock belongs to the execution that called it, and is still held when the sub-workflow has ended' },
      { name: 'This Execution', value: 'execution', description: 'The lock ends with this execution' },
    ],
    description: 'Whose lock it is',
  },
  {
    displayName: 'Release When Execution Ends',
    name: 'releaseOnEnd',
    type: 'options',
    default: 'always',
    options: [
      { name: 'Always', value: 'always', description: 'After success and after an error; after a stop the lock lasts for a grace time' },
      { name: 'Never', value: 'never', description: 'Only a Release node or the end of the TTL frees it' },
      { name: 'On Success', value: 'success', description: 'After an error it stays locked until its TTL is over, or somebody frees it' },
    ],
    description: 'Whether the lock is given back when the execution ends without a Release',
  },
  {
    displayName: 'Stop the Execution When Lost',
    name: 'stopWhenLost',
    type: 'boolean',
    default: false,
    description: 'Whether the next Redis Lock node fails with an error, when Keep Alive found that the lock was lost',
  },
];

/** Owner, for Heartbeat and Release. */
export const callerField: INodeProperties = {
  displayName: 'Owner',
  name: 'owner',
  type: 'options',
  default: 'execution',
  options: [
    { name: 'Calling Execution', value: 'caller', description: 'In a sub-workflow: what sub-workflows took for the execution that called this one; for By Key and All of This Execution' },
    { name: 'This Execution', value: 'execution' },
  ],
  description: 'Whose locks are meant',
};

/** What a Release leaves for later deliveries of the same thing. */
export const doneFields: INodeProperties[] = [
  {
    displayName: 'Remember as Done',
    name: 'markDone',
    type: 'boolean',
    default: true,
    description: 'Whether what Acquire Once took is remembered as done. Switch it off where the work was not done, so that a repetition gets through.',
  },
  {
    displayName: 'Result',
    name: 'doneResult',
    type: 'json',
    default: '',
    description: 'With Remember as Done: up to 4 kB of JSON that Done Before hands out, such as the ID of what was made',
  },
];

const LONGEST_RESULT = 4096;

/** @returns undefined where it is not to be remembered @throws NodeOperationError */
export function readDone(context: IExecuteFunctions, index: number): { result?: unknown } | undefined {
  const { markDone = true, doneResult = '' } = readOptions(context, index);
  if (markDone === false) return undefined;
  const result = typeof doneResult === 'string' ? parseResult(context, doneResult, index) : doneResult;
  if (result === undefined || result === null) return {};
  const bytes = Buffer.byteLength(JSON.stringify(result));
  if (bytes <= LONGEST_RESULT) return { result };
  throw itemError(context, `Result (item ${index}) has ${bytes} bytes as JSON, and ${LONGEST_RESULT} are allowed. Leave an ID there, and what it stands for where it is.`, index);
}

function parseResult(context: IExecuteFunctions, text: string, index: number): unknown {
  if (text.trim() === '') return undefined;
  try {
    return JSON.parse(text) as unknown;
  } catch {
    throw itemError(context, `Result (item ${index}) is not JSON: ${show(text.slice(0, 100))}. Write a text in quotation marks, or an object such as { "id": 7 }.`, index);
  }
}

const DAY_S = 86_400;

/** @throws NodeOperationError */
export function readCare(context: IExecuteFunctions, index: number): Care {
  const options = readOptions(context, index);
  const maxHold = toMs(context, options.maxHold ?? 0, 'Max Hold', index, { least: 0 });
  const releaseOnEnd = (options.releaseOnEnd ?? 'always') as ReleaseOnEnd;
  if (!['always', 'success', 'never'].includes(releaseOnEnd)) {
    throw itemError(context, `Release When Execution Ends (item ${index}) is ${show(releaseOnEnd)}, which this version does not know. Choose one from the list.`, index);
  }
  return {
    keepAlive: options.keepAlive !== false,
    releaseOnEnd,
    holdUntil: Date.now() + (maxHold || workflowLimitMs(context) || DAY_S * 1000),
    stopGraceMs: toMs(context, options.stopGrace ?? 30, 'Grace After Stop', index, { least: 1 }),
    stopWhenLost: options.stopWhenLost === true,
    note: readNote(context, index),
  };
}

/** Whether the lock belongs to the execution that called this one. @throws NodeOperationError */
export function readIsForCaller(context: IExecuteFunctions, index: number): boolean {
  const { owner = 'execution' } = readOptions(context, index);
  if (owner === 'caller' || owner === 'execution') return owner === 'caller';
  throw itemError(context, `Owner (item ${index}) is ${show(owner)}, which this version does not know. Choose one from the list.`, index);
}

/** Options are looked for by their names. */
export const byName = (options: INodeProperties[]): INodeProperties[] =>
  [...options].sort((a, b) => a.displayName.localeCompare(b.displayName));

/** "Options" of an operation. */
export const optionsField = (options: INodeProperties[]): INodeProperties => ({
  displayName: 'Options',
  name: 'options',
  type: 'collection',
  placeholder: 'Add option',
  default: {},
  options,
});

/** Which of the execution's locks; for Heartbeat and Release. */
export function targetFields(verb: string, auto: string, more: INodePropertyOptions[] = []): INodeProperties[] {
  return [
    {
      displayName: 'Which Lock',
      name: 'target',
      type: 'options',
      default: 'auto',
      options: [
        ...more,
        { name: 'All of This Execution', value: 'execution', description: `${verb} everything that this execution holds` },
        { name: 'Automatic', value: 'auto', description: auto },
        { name: 'By Acquire Node', value: 'node', description: `${verb} what one Acquire or Steal node of this execution took` },
        { name: 'By Key', value: 'key', description: `${verb} the lock of that key, if this execution holds it` },
        { name: 'By Lock ID', value: 'lockId', description: `${verb} the lock of that lock ID, also one of another execution that passed its lock ID on` },
      ],
      description: `Which lock to ${verb.toLowerCase()}`,
    },
    {
      displayName: 'Acquire Node',
      name: 'acquiredBy',
      type: 'string',
      required: true,
      default: '',
      placeholder: 'e.g. Redis Lock',
      displayOptions: { show: { target: ['node'] } },
      description: 'Name of the node that took the lock',
    },
    {
      displayName: 'Lock ID',
      name: 'lockId',
      type: 'string',
      required: true,
      default: '',
      placeholder: 'e.g. {{ $json.lock.lockId }}',
      displayOptions: { show: { target: ['lockId'] } },
      description: 'The secret of the holder, as Acquire put it on its item',
    },
    { ...keyField, displayOptions: { show: { target: ['key'] } } },
    {
      ...keyField,
      required: false,
      description: 'Name of the lock. Only needed for a lock ID that was not acquired by this execution.',
      displayOptions: { show: { target: ['lockId'] } },
    },
  ];
}

/** A parameter as it is for item `index`. @throws NodeOperationError when its expression fails */
function parameter(context: IExecuteFunctions, name: string, label: string, index: number, fallback: unknown): unknown {
  try {
    return context.getNodeParameter(name, index, fallback as never);
  } catch (error) {
    const why = error instanceof Error ? error.message.trim() : String(error);
    const failure = itemError(context, `${label} (item ${index}) could not be evaluated: ${why}. Check its expression.`, index);
    throw failure;
  }
}

/** The key of item `index`. @throws NodeOperationError that names the parameter, the item and the remedy */
export function readKey(context: IExecuteFunctions, index: number): string {
  const { key, missing } = keyOf(context, index, false);
  if (missing) throw missing;
  return key;
}

/**
 * The same; `missing`: the item has nothing to make its key of. Here an empty part that was chosen is none either: where
 * equal keys are the same thing, all items with that part empty would be taken for one.
 */
export const readKeyOrNone = (context: IExecuteFunctions, index: number) => keyOf(context, index, true);

function keyOf(context: IExecuteFunctions, index: number, identifies: boolean): { key: string; missing?: NodeOperationError } {
  const value = parameter(context, 'key', 'Key', index, '');
  const key = typeof value === 'number' || typeof value === 'bigint' ? String(value) : value;
  const none = (problem: string) => ({ key: '', missing: itemError(context, `Key (item ${index}) ${problem}`, index) });
  const absent = absence(key);
  if (absent) return none(absent);
  const part = missingPart(context, index, identifies);
  if (part) {
    return none(
      `is "${String(key)}": {{ ${part} }} has no value on this item, so every item without one would share one lock. Check the expression, and filter such items out before this node.`,
    );
  }
  const problem = keyProblem(key);
  if (problem) throw itemError(context, `Key (item ${index}) ${problem}`, index);
  if (identifies && hasEmptyPart(String(key), rawKey(context, index))) {
    return none(`is "${String(key)}", with an empty part: every item without that value would be taken for the same. Check the expression, and filter such items out before this node.`);
  }
  return { key: key as string };
}

/**
 * The part of a key such as `job:{{ $json.id }}` that is missing on this item. n8n puts an empty text in its place, so
 * the key itself does not show it. An empty text that was chosen, by a condition or a fallback, is no mistake, unless it is
 * the whole of what identifies a thing.
 */
function missingPart(context: IExecuteFunctions, index: number, identifies: boolean): string | undefined {
  const parts = [...rawKey(context, index).slice(1).matchAll(/\{\{(.*?)\}\}/gs)].map(([, part]) => (part ?? '').trim());
  const values = parts.map((part) => evaluate(context, part, index));
  const found = values.findIndex((value, i) => value === undefined || value === null || Number.isNaN(value) || (isBlank(value) && !/\?(?!\.)|\|\|/.test(parts[i] ?? '')));
  return parts[found] ?? (identifies && values.every(isBlank) ? parts[0] : undefined);
}

const isBlank = (value: unknown) => value === '' || (Array.isArray(value) && String(value) === '');

/** As it was typed, with "=" before it; an empty text where it is no expression. */
function rawKey(context: IExecuteFunctions, index: number): string {
  const raw: unknown = context.getNodeParameter('key', index, '', { rawExpressions: true });
  return typeof raw === 'string' && raw.startsWith('=') ? raw : '';
}

/** Whether a value was empty that JavaScript put in: behind the colon of a text, as in `"job:" + $json.id`, is nothing. */
function hasEmptyPart(key: string, raw: string): boolean {
  if (raw === '') return false;
  const seams = [...raw.matchAll(/([^"'`}]*:)(?:["']\s*\+|\$\{)/g)].map(([, seam]) => seam ?? '');
  return /^:|:$/.test(key) || seams.some((seam) => key.includes(`${seam}:`));
}

/** The value of one part; a part that can't stand alone (a "}}" within a text cut it short) tells nothing. */
function evaluate(context: IExecuteFunctions, part: string, index: number): unknown {
  try {
    return context.evaluateExpression(`{{ ${part} }}`, index);
  } catch {
    return 'unknown';
  }
}

/** A key, or a part of one, that is not there. */
function absence(key: unknown): string | undefined {
  if (key === undefined || key === null || key === '') {
    return 'is empty. Type a name, such as w4ingest:lock:{{ $json.folder }}, and check that the field it uses exists on this item.';
  }
  const word = typeof key === 'string' && /(?:^|[^A-Za-z0-9])(undefined|null|NaN)(?:$|[^A-Za-z0-9])/.exec(key)?.[1];
  return word
    ? `is "${key}", with "${word}" where a value should be: every item without that value would share one lock. Check the expression, and filter such items out before this node.`
    : undefined;
}

function keyProblem(key: unknown): string | undefined {
  if (typeof key !== 'string' || key.includes('[object Object]')) {
    return 'is an object, not a text. Point the expression at one field of it, such as {{ $json.id }}.';
  }
  if (key.startsWith('=') || /\{\{.*\}\}/s.test(key)) {
    return `is "${key}", an expression that was not evaluated. Switch the field from Fixed to Expression.`;
  }
  if (/[\r\n]/.test(key)) return 'has a line break in it. Take it out, for example with {{ $json.name.trim() }}.';
  if (key !== key.trim()) return `is "${key}", with blanks at its start or end. Take them out, for example with {{ $json.name.trim() }}.`;
  return undefined;
}

/**
 * A number of seconds, as ms.
 * @param name of the parameter @param label of the parameter, as people see it
 * @throws NodeOperationError
 */
export function readSeconds(
  context: IExecuteFunctions,
  name: string,
  label: string,
  index: number,
  bounds: { least: number; most?: number },
): number {
  return toMs(context, parameter(context, name, label, index, 0), label, index, bounds);
}

/** The same for a value that was read already. */
export function toMs(
  context: IExecuteFunctions,
  raw: unknown,
  label: string,
  index: number,
  { least, most = LONGEST_TTL_S }: { least: number; most?: number },
): number {
  const value = typeof raw === 'string' && raw.trim() !== '' ? Number(raw) : raw;
  if (typeof value !== 'number' || !Number.isFinite(value) || value < least || value > most) {
    throw itemError(context, `${label} (item ${index}) must be a number of seconds from ${least} to ${most}, not ${show(raw)}.`, index);
  }
  return Math.ceil(value * 1000);
}

export const show = (value: unknown) => (typeof value === 'string' ? `"${value}"` : String(value));

/** @param remedy what to do where it is empty */
export function readText(
  context: IExecuteFunctions,
  name: string,
  label: string,
  index: number,
  remedy = 'Fill it in, or choose another way under "Which Lock".',
): string {
  const value = parameter(context, name, label, index, '');
  // What was chosen from a list, or as n8n has it where a number was meant.
  const chosen: unknown = typeof value === 'object' && value !== null && 'value' in value ? value.value : value;
  const text = typeof chosen === 'number' ? String(chosen) : chosen;
  if (typeof text !== 'string' || text.trim() === '') throw itemError(context, `${label} (item ${index}) is empty. ${remedy}`, index);
  return text.trim();
}

const LONGEST_NOTE = 1000;

/** @throws NodeOperationError */
export function readNote(context: IExecuteFunctions, index: number): string {
  const note = String(readOptions(context, index).note ?? '');
  if (Buffer.byteLength(note) <= LONGEST_NOTE) return note;
  throw itemError(context, `Note (item ${index}) must not be longer than ${LONGEST_NOTE} bytes. Shorten it; who holds the lock is recorded anyway.`, index);
}

export const readOptions = (context: IExecuteFunctions, index: number): IDataObject =>
  parameter(context, 'options', 'Options', index, {}) as IDataObject;

/** Field names that n8n itself gives a meaning on items. */
const RESERVED = ['error', 'message', 'details'];

/** Name of the field for what the lock has to say. @throws NodeOperationError */
export function readOutputField(context: IExecuteFunctions, index: number): string {
  const { outputField: name = 'lock' } = readOptions(context, index);
  if (typeof name !== 'string' || !/^[A-Za-z_$][\w$]*$/.test(name) || RESERVED.includes(name) || name === '__proto__') {
    throw itemError(
      context,
      `Output Field (item ${index}) must be a plain name such as lock, and none of ${RESERVED.join(', ')}, not ${show(name)}.`,
      index,
    );
  }
  return name;
}

import type { IExecuteFunctions, NodeOperationError } from 'n8n-workflow';
import { itemError } from './execution';
import { parameter } from './parameters';

/** Reading the parameter Key: one key, or several. What every item without its ID would share is refused. */

/** The key of item `index`. @throws NodeOperationError that names the parameter, the item and the remedy */
export function readKey(context: IExecuteFunctions, index: number): string {
  const { key, missing } = keyOf(context, index, false);
  if (missing) throw missing;
  return key;
}

const MOST_KEYS = 100;

/**
 * The keys of item `index`: an array that an expression gives, or one key in each line. Each counts once; in the order of their bytes,
 * so that two executions never wait for each other. @throws NodeOperationError
 */
export function readKeys(context: IExecuteFunctions, index: number): string[] {
  const value = parameter(context, 'key', 'Key', index, '');
  const isLines = typeof value === 'string' && /[\r\n]/.test(value);
  if (!Array.isArray(value) && !isLines) return [readKey(context, index)];
  const list: unknown[] = Array.isArray(value) ? value : String(value).split(/\r?\n/);
  const refuse = (problem: string) => itemError(context, `Key (item ${index}) ${problem}`, index);
  if (list.length === 0) throw refuse('is an empty list. Check the expression, and filter such items out before this node.');
  const keys = new Set<string>();
  list.forEach((each, i) => {
    const key = typeof each === 'number' || typeof each === 'bigint' ? String(each) : each;
    if (isLines && key === '') throw refuse(`has an empty line in it (line ${i + 1}). Take it out, for example with {{ $json.name.trim() }}.`);
    const problem = absence(key) ?? keyProblem(key);
    if (problem) throw refuse(`is a list, and number ${i + 1} of it ${problem}`);
    keys.add(key as string);
  });
  const part = missingPart(context, index, false);
  if (part) throw refuse(`is a list in which {{ ${part} }} has no value on this item, so every item without one would share a lock. Check the expression, and filter such items out before this node.`);
  if (keys.size > MOST_KEYS) throw refuse(`is a list of ${keys.size} keys, and ${MOST_KEYS} are allowed. Choose a key that stands for all of them.`);
  return [...keys].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
}

/**
 * The key of item `index`; `missing`: the item has nothing to make its key of. Here an empty part that was chosen is none either: where
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
  if (Array.isArray(key)) return 'is a list, and this takes one key. Choose one of them, or take them with Acquire.';
  if (typeof key !== 'string' || key.includes('[object Object]')) {
    return 'is an object, not a text. Point the expression at one field of it, such as {{ $json.id }}.';
  }
  if (key.startsWith('=') || /\{\{.*\}\}/s.test(key)) {
    return `is "${key}", an expression that was not evaluated. Switch the field from Fixed to Expression.`;
  }
  if (/[\r\n]/.test(key)) return 'has a line break in it, and this takes one key. Take the line break out, for example with {{ $json.name.trim() }}.';
  if (key !== key.trim()) return `is "${key}", with blanks at its start or end. Take them out, for example with {{ $json.name.trim() }}.`;
  return undefined;
}

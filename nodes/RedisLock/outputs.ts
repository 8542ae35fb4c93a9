import type { IDataObject, IExecuteFunctions, INode, INodeExecutionData, NodeOperationError } from 'n8n-workflow';
import { itemError } from './execution';

/**
 * The one place that knows the outputs: their names, their order, and how a result becomes an item on one of them.
 * The order is a contract with saved workflows. Output 0 is the branch that owns the lock: n8n connects the next node
 * there by default, and sends stray items there too (see `shield`).
 */
export const OUTPUTS = {
  acquire: ['Acquired', 'Busy', 'Timed Out'],
  acquireOnce: ['Acquired', 'Busy', 'Timed Out', 'Done Before'],
  getStatus: ['Status'],
  heartbeat: ['Alive', 'Lost'],
  release: ['Released', 'Not Held'],
  runWorkflow: ['Done', 'Busy', 'Timed Out'],
  steal: ['Stolen', 'Not Stolen'],
} as const;

export type Operation = keyof typeof OUTPUTS;
export type OutputName = (typeof OUTPUTS)[Operation][number];

/** For the node's description: the outputs follow the operation. n8n evaluates it without this file's scope. */
export const outputsExpression = `={{ (${JSON.stringify(OUTPUTS)}[$parameter.operation] || []).map((displayName) => ({ type: "main", displayName })) }}`;

/** Results of one run of the node: one for each input item, in the end sorted onto the outputs in the items' order. */
export class Results {
  /** Some item failed. */
  failed = false;
  private readonly byItem = new Map<number, { output: number; items: INodeExecutionData[] }>();

  constructor(
    private readonly operation: Operation,
    private readonly items: INodeExecutionData[],
    private readonly settings: Settings,
    private readonly field: (index: number) => string,
  ) {}

  /**
   * Sends item `index` out through `output` with `lock` under the output field. Built anew, never spread: an `error` on
   * the item itself would make n8n move it to the Error output while the lock is held.
   */
  put(index: number, output: OutputName, lock: IDataObject): void {
    const source = this.items[index];
    const item: INodeExecutionData = {
      json: { ...source?.json, [this.field(index)]: lock },
      pairedItem: { item: index },
    };
    if (source?.binary) item.binary = source.binary;
    this.putAll(index, output, [item]);
  }

  /** The same with items that were made elsewhere: any number of them in the place of item `index`. */
  putAll(index: number, output: OutputName, items: INodeExecutionData[]): void {
    this.byItem.set(index, { output: (OUTPUTS[this.operation] as readonly string[]).indexOf(output), items });
  }

  /**
   * A failure of item `index`. Under a Continue setting it becomes an error item, never on output 0 where there is
   * another; otherwise it ends the run.
   * @throws NodeOperationError
   */
  fail(index: number, error: NodeOperationError): void {
    if (!this.settings.continueOnFail) throw error;
    const source = this.items[index];
    // With the Error output n8n takes only items that have nothing but `error`, and adds the input's fields itself.
    const json = this.settings.errorOutput ? { error: error.message } : { ...source?.json, error: error.message };
    const item: INodeExecutionData = { json, pairedItem: { item: index } };
    if (source?.binary) item.binary = source.binary;
    this.failed = true;
    this.byItem.set(index, { output: Math.min(1, OUTPUTS[this.operation].length - 1), items: [item] });
  }

  /** Takes a result back: what it says is not so any more. */
  forget(index: number): void {
    this.byItem.delete(index);
  }

  has(index: number): boolean {
    return this.byItem.has(index);
  }

  /** One array for each output, always: n8n 2.41 fails on a missing one. */
  outputs(): INodeExecutionData[][] {
    const outputs: INodeExecutionData[][] = OUTPUTS[this.operation].map(() => []);
    for (const [, { output, items }] of [...this.byItem].sort(([a], [b]) => a - b)) outputs[output]?.push(...items);
    return outputs;
  }
}

/** What the user set under Settings, as far as it decides where items go. */
export interface Settings {
  continueOnFail: boolean;
  errorOutput: boolean;
}

export interface Shield {
  settings: Settings;
  /** What this very call of the node gave before, when n8n only repeats it. */
  before?: INodeExecutionData[][];
  /** Set where this n8n leaves no way to shield, and a stray item is possible: nothing may be locked. */
  refusal?: NodeOperationError;
  /** Before a normal return: what n8n's own routing of error items needs. @param repeatable a failure may be tried again */
  lower(outputs: INodeExecutionData[][], repeatable: boolean): void;
  /** Before an exception leaves. */
  fail(): void;
}

/** The node as the user set it, for a retry that finds our shadow in the stack entry. */
const originals = new WeakMap<object, INode>();

/**
 * What a call gave that succeeded. Retry on Fail takes an `error` field of the user's own on the first item for a failure
 * and runs the node again: a second Steal would be told "not stolen" of its own lock.
 */
const finished = new WeakMap<object, INodeExecutionData[][]>();

/**
 * n8n sends stray items out of output 0, here the branch that owns the lock: under a Continue setting the whole input
 * when an exception escapes, and under Always Output Data an empty item whenever output 0 has none. Both are decided
 * by the node in the execution stack, so a shadow of it stands there meanwhile. The workflow's own node stays untouched.
 */
export function shield(context: IExecuteFunctions): Shield {
  const entry = typeof context.getExecuteData === 'function' ? context.getExecuteData() : undefined;
  const original = (entry && originals.get(entry)) ?? entry?.node ?? context.getNode();
  const settings = settingsOf(original);
  if (!entry?.node) {
    const refusal = original.alwaysOutputData
      ? itemError(
          context,
          'Switch off "Always Output Data" in the settings of this node: this n8n would send an empty item out through the first output, as if the lock were held.',
          0,
        )
      : undefined;
    return { settings, refusal, lower() {}, fail() {} };
  }
  originals.set(entry, original);
  entry.node = { ...original, alwaysOutputData: false, onError: 'stopWorkflow', continueOnFail: false };
  return {
    settings,
    before: finished.get(entry),
    lower(outputs, repeatable) {
      if (!repeatable) finished.set(entry, outputs);
      const { onError, continueOnFail } = original;
      entry.node = { ...entry.node, onError, continueOnFail };
    },
    fail() {
      // Where the run stops anyway, the entry is saved for the user's Retry: with the real node.
      if (!settings.continueOnFail) entry.node = original;
    },
  };
}

function settingsOf({ onError, continueOnFail }: INode): Settings {
  return {
    continueOnFail: onError === undefined ? continueOnFail === true : onError !== 'stopWorkflow',
    errorOutput: onError === 'continueErrorOutput',
  };
}

import { outputIndex, type Json, type Workflow } from './workflow';

export interface Item {
  json: Json & { lock?: Json; error?: unknown };
  binary?: Record<string, unknown>;
  pairedItem?: unknown;
  error?: RunError;
}

export interface RunError {
  name: string;
  message: string;
  description?: string;
  node?: string;
  itemIndex?: number;
}

interface NodeRun {
  outputs: Array<Item[] | null>;
  status: string;
  error?: RunError;
  hints: Array<{ message: string }>;
}

/** What the host answers when an execution has come to its end. */
export interface Answer {
  status: 'success' | 'error' | 'canceled' | 'waiting';
  error?: RunError;
  runs: Record<string, NodeRun[]>;
  changedNodes: string[];
  data: string;
}

/** How an execution ended, and what every node in it gave out. */
export class Result {
  constructor(
    private readonly workflow: Workflow,
    private readonly answer: Answer,
    readonly executionId: string,
    /** Names of the nodes in the order in which they began. */
    readonly order: string[],
  ) {}

  get status() {
    return this.answer.status;
  }

  /** What ended the execution. */
  get error() {
    return this.answer.error;
  }

  /** Message and description of what ended the execution. */
  get errorText() {
    return `${this.error?.message}\n${this.error?.description ?? ''}`;
  }

  /** Nodes of the workflow that are not what they were before the run. */
  get changedNodes() {
    return this.answer.changedNodes;
  }

  /** The execution as n8n keeps it, to retry or to resume it. */
  get data() {
    return this.answer.data;
  }

  /** All runs of a node; none where it never ran. */
  runs(node: string): NodeRun[] {
    return this.answer.runs[node] ?? [];
  }

  ran(node: string): boolean {
    return this.runs(node).length > 0;
  }

  /** The items that a node gave out through one output, over all of its runs. */
  items(node: string, output: string): Item[] {
    const definition = this.workflow.nodes.find(({ name }) => name === node);
    if (!definition) throw new Error(`The workflow has no node "${node}"`);
    const index = outputIndex(definition, output);
    return this.runs(node).flatMap((run) => run.outputs[index] ?? []);
  }

  /** What the lock node said about each item that left through that output. */
  locks(node: string, output: string): Json[] {
    return this.items(node, output).map(({ json }) => json.lock as Json);
  }

  /** How many items left through each output, over all runs of the node: `[2, 0, 0]`. */
  counts(node: string): number[] {
    const counts: number[] = [];
    for (const run of this.runs(node)) {
      run.outputs.forEach((items, index) => (counts[index] = (counts[index] ?? 0) + (items?.length ?? 0)));
    }
    return counts;
  }
}

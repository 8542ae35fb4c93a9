import { hostname } from 'node:os';
import { NodeOperationError, type IExecuteFunctions, type INodeExecutionData } from 'n8n-workflow';
import type { Owner } from '../../engine';
import type { Ending } from './keepAlive';

/** The one place that asks n8n about the execution: who it is, who called it, whether it was stopped, when it ends. */

/** Who takes the lock, for people to read. */
export function ownerOf(context: IExecuteFunctions, note: string): Owner {
  const { id, name } = context.getWorkflow();
  const executionId = context.getExecutionId();
  const base = context.getInstanceBaseUrl?.();
  return {
    executionId,
    instanceId: context.getInstanceId?.(),
    workflowId: id,
    workflowName: name,
    nodeName: context.getNode().name,
    runIndex: inside(context).runIndex,
    executionUrl: base && id && executionId ? `${base.replace(/\/?$/, '/')}workflow/${id}/executions/${executionId}` : undefined,
    host: hostname(),
    pid: process.pid,
    note: note === '' ? undefined : note,
  };
}

/** What n8n has in every context, though its types do not say so. */
interface Inside {
  runIndex?: number;
  additionalData?: {
    executionTimeoutTimestamp?: number;
    hooks?: { addHandler?: (name: 'workflowExecuteAfter', handler: (run: FinishedRun) => Promise<void>) => void };
  };
  runExecutionData?: {
    parentExecution?: { executionId: string; workflowId: string; shouldResume?: boolean };
    startData?: { destinationNode?: string | { nodeName: string } };
  };
  workflow?: { connectionsBySourceNode?: Record<string, { main?: Array<unknown[] | null> }> };
  /** Of n8n 2.33 and later. */
  onExecutionFinish?: (handler: () => Promise<void>) => void;
}

interface FinishedRun {
  status?: string;
  waitTill?: Date | string | null;
}

const inside = (context: IExecuteFunctions) => context as unknown as Inside;

/** The execution that called this one as a sub-workflow. */
export interface CallingExecution {
  executionId: string;
  workflowId: string;
  /** It goes on when this one has ended. */
  waits: boolean;
}

export function callerOf(context: IExecuteFunctions): CallingExecution | undefined {
  const parent = inside(context).runExecutionData?.parentExecution;
  // An error workflow is not a part of the execution that failed.
  if (!parent?.executionId || context.getMode() === 'error') return undefined;
  const { executionId, workflowId, shouldResume } = parent;
  return { executionId, workflowId, waits: shouldResume !== false };
}

/** Whether something is connected behind an output of this node. */
export function isConnected(context: IExecuteFunctions, output: number): boolean {
  const { name } = context.getNode();
  const { workflow } = inside(context);
  if (workflow?.connectionsBySourceNode) return (workflow.connectionsBySourceNode[name]?.main?.[output]?.length ?? 0) > 0;
  return context.getChildNodes(name).length > 0;
}

/** The editor runs the workflow up to this node only, so the execution ends with it. */
export function endsHere(context: IExecuteFunctions): boolean {
  const destination = inside(context).runExecutionData?.startData?.destinationNode;
  const name = typeof destination === 'object' ? destination.nodeName : destination;
  return context.getMode() === 'manual' && name === context.getNode().name;
}

/** The time limit that the workflow sets for its executions, in ms. */
export function workflowLimitMs(context: IExecuteFunctions): number | undefined {
  const { executionTimeout } = context.getWorkflowSettings?.() ?? {};
  return typeof executionTimeout === 'number' && executionTimeout > 0 ? executionTimeout * 1000 : undefined;
}

/** How much n8n tells of the end of an execution: how it ended, only that it did, or nothing. */
export type EndIsTold = 'withStatus' | 'only' | 'not';

const ENDINGS: Record<string, Ending> = { success: 'success', waiting: 'waiting', canceled: 'stopped' };

/**
 * Calls `handler` when the execution ends, or goes to wait, in this process. n8n awaits it, but not where the execution was
 * stopped. The handler is kept until then: it must not close over the context.
 */
export function onEnd(context: IExecuteFunctions, handler: (ending: Ending, waitTill?: number) => Promise<void>): EndIsTold {
  const settings = context.getWorkflowSettings?.() as { engineType?: string } | undefined;
  // The experimental engine takes handlers and never calls them.
  if (settings?.engineType === 'v2') return 'not';
  const hooks = inside(context).additionalData?.hooks;
  if (typeof hooks?.addHandler === 'function') {
    try {
      hooks.addHandler('workflowExecuteAfter', async ({ status, waitTill }) => {
        await handler(ENDINGS[status ?? ''] ?? 'error', waitTill ? new Date(waitTill).getTime() : undefined);
      });
      return 'withStatus';
    } catch {
      // Hooks of another kind.
    }
  }
  const { onExecutionFinish } = inside(context);
  if (typeof onExecutionFinish !== 'function') return 'not';
  const stopped = context.getExecutionCancelSignal?.();
  onExecutionFinish.call(context, async () => await handler(stopped?.aborted ? 'stopped' : 'unknown'));
  return 'only';
}

/**
 * Runs another workflow as a part of this execution, as n8n's own Execute Workflow does.
 * @returns its items; `waits`: it went to wait, and n8n has suspended this execution until it is done
 * @throws what it failed with
 */
export async function runSubWorkflow(context: IExecuteFunctions, id: string, items: INodeExecutionData[]): Promise<{ items: INodeExecutionData[]; waits: boolean }> {
  const parentExecution = { executionId: context.getExecutionId(), workflowId: context.getWorkflow().id ?? '', shouldResume: true };
  // Of n8n 2: a manual run takes the draft of the other workflow too.
  const options = { parentExecution, executionMode: context.getMode() };
  const { data, executionId, waitTill } = await context.executeWorkflow({ id }, items, undefined, options);
  context.setMetadata?.({ subExecution: { executionId, workflowId: id }, subExecutionsCount: 1 });
  return { items: data[0] ?? [], waits: Boolean(waitTill) };
}

/** What the index by execution needs. */
export function identityOf(context: IExecuteFunctions): Owner {
  return { executionId: context.getExecutionId(), instanceId: context.getInstanceId?.() };
}

/** Why a wait ended early; its text goes to the user. */
class Stopped extends Error {}

/**
 * A signal that ends a wait when the execution is stopped or its time is over. n8n gives no signal of the time limit on
 * workers before 2.40 and none to sub-workflows, so the limit is watched here too.
 */
export function stopSignal(context: IExecuteFunctions): { signal: AbortSignal; dispose(): void } {
  // Listeners must not close over the context: the signal lives as long as the execution, with all of its data.
  const own = new AbortController();
  const cancel = context.getExecutionCancelSignal?.();
  const onStop = () => own.abort(new Stopped('The execution was stopped while it waited for a lock.'));
  if (cancel?.aborted) onStop();
  else cancel?.addEventListener('abort', onStop, { once: true });
  const { executionTimeoutTimestamp: limit } = inside(context).additionalData ?? {};
  let timer: NodeJS.Timeout | undefined;
  const onLimit = () => own.abort(new Stopped('The time limit of the execution was reached while it waited for a lock.'));
  if (limit !== undefined && limit - Date.now() < 2 ** 31 - 1) {
    timer = setTimeout(onLimit, Math.max(0, limit - Date.now()));
    timer.unref();
  }
  return {
    signal: own.signal,
    dispose() {
      clearTimeout(timer);
      cancel?.removeEventListener('abort', onStop);
    },
  };
}

export const isStopped = (error: unknown): error is Error => error instanceof Stopped;

/** A note at the node after the run. Missing on old n8n, which does without. */
export function hint(context: IExecuteFunctions, message: string): void {
  context.addExecutionHints?.({ message, type: 'warning', location: 'outputPane' });
}

/** An error that says at which item. */
export function itemError(context: IExecuteFunctions, message: string, itemIndex: number): NodeOperationError {
  const error = new NodeOperationError(context.getNode(), message, { itemIndex });
  // n8n replaces a whole message that has ECONNREFUSED or the like in it by one without host, port and remedy.
  error.message = message;
  return error;
}

import { updateDisplayOptions, type INodeProperties } from 'n8n-workflow';
import type { Operation } from '../outputs';
import type { OperationModule } from '../run';
import { acquire } from './acquire';
import { acquireOnce } from './acquireOnce';
import { getStatus } from './getStatus';
import { heartbeat } from './heartbeat';
import { release } from './release';
import { runWorkflow } from './runWorkflow';
import { steal } from './steal';

/** Every operation of the node, by the value of its parameter `operation`. */
export const operations: Record<Operation, OperationModule<unknown>> = { acquire, acquireOnce, getStatus, heartbeat, release, runWorkflow, steal };

const operationField: INodeProperties = {
  displayName: 'Operation',
  name: 'operation',
  type: 'options',
  noDataExpression: true,
  default: 'acquire',
  options: [
    { name: 'Acquire', value: 'acquire', action: 'Acquire a lock', description: 'Enter a section that only one execution may be in: take the lock, at once or after waiting in line' },
    { name: 'Acquire Once', value: 'acquireOnce', action: 'Acquire a lock once', description: 'Do a thing only once: one execution does it, others find it busy, and later ones done before' },
    { name: 'Get Status', value: 'getStatus', action: 'Get the status of a lock', description: 'See who holds a lock, since when and for how long, changing nothing' },
    { name: 'Heartbeat', value: 'heartbeat', action: 'Renew a lock', description: 'Keep the lock while the work goes on, and learn whether it was lost' },
    { name: 'Release', value: 'release', action: 'Release a lock', description: 'Leave the section: give the lock to the next in line' },
    { name: 'Run Workflow', value: 'runWorkflow', action: 'Run a workflow under a lock', description: 'Take the lock, run another workflow, and give the lock back whatever happens' },
    { name: 'Steal', value: 'steal', action: 'Steal an abandoned lock', description: 'Take a lock over from a holder that is gone; exactly one of several contenders wins' },
  ],
};

/** The parameters of the node: the operation, and those of each operation while it is chosen. */
export const properties: INodeProperties[] = [
  operationField,
  ...Object.entries(operations).flatMap(([operation, { description }]) =>
    updateDisplayOptions({ show: { operation: [operation] } }, description),
  ),
];

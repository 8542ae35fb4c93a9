import { hostname } from 'node:os';
import { oursAdapter } from '../lib/ours.mjs';

let executions = 0;

/** As the n8n node uses it: a full record of the owner, and every acquire by an execution of its own, with its index. */
export default oursAdapter('ours-with-index', () => ({
  executionId: `${process.pid}-${(executions += 1)}`,
  instanceId: 'f2b8a3c4d5e6f7a8b9c0d1e2f3a4b5c6d7e8f9a0b1c2d3e4f5a6b7c8d9e0f1a2',
  workflowId: 'kZ4m1qT8vR2xW7yB',
  workflowName: 'Mail import',
  nodeName: 'Acquire',
  runIndex: 0,
  host: hostname(),
  pid: process.pid,
}));
